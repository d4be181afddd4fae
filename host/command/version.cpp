// `chassis version`: the versions of the program, its ABI and LibTorch.
#include <fmt/core.h>

#include <cstdio>

#include "chassis/abi.h"
#include "host/base/output.hpp"
#include "host/command/command.hpp"
#include "host/service/host_services.hpp"

namespace chassis {

std::string version_text() {
  MetricsStore metrics;
  return fmt::format("chassis {}\nABI {}.{}\nLibTorch {}\n", CHASSIS_VERSION, CHASSIS_ABI_MAJOR, CHASSIS_ABI_MINOR,
                     HostServices(0, metrics).torch_version());
}

Verb add_version(CLI::App&) {
  return [] {
    std::fputs(version_text().c_str(), output());
    return 0;
  };
}

}  // namespace chassis
