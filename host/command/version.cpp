#include <cstdio>

#include "chassis/abi.h"
#include "host/base/output.hpp"
#include "host/command/command.hpp"
#include "host/service/host_services.hpp"

namespace chassis {

Verb add_version(CLI::App&) {
  return [] {
    MetricsStore metrics;
    std::fprintf(output(), "chassis %s\nABI %d.%d\nLibTorch %s\n", CHASSIS_VERSION, CHASSIS_ABI_MAJOR, CHASSIS_ABI_MINOR,
                HostServices(0, metrics).torch_version().c_str());
    return 0;
  };
}

}  // namespace chassis
