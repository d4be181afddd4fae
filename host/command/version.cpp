// `chassis version`: the versions of the program, its ABI and LibTorch.
#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <string>

#include "chassis/abi.h"
#include "host/base/json.hpp"
#include "host/base/output.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/service/host_services.hpp"

namespace chassis {

namespace {

struct Versions {
  std::string program = CHASSIS_VERSION, abi = fmt::format("{}.{}", CHASSIS_ABI_MAJOR, CHASSIS_ABI_MINOR), torch;
};

Versions versions() {
  MetricsStore metrics;
  return {.torch = HostServices(0, metrics).torch_version()};
}

}  // namespace

std::string version_text() {
  const Versions found = versions();
  return fmt::format("chassis {}\nABI {}\nLibTorch {}\n", found.program, found.abi, found.torch);
}

Verb add_version(CLI::App& app) {
  auto as_json = std::make_shared<bool>(false);
  add_json(app, *as_json);
  return [=] {
    if (*as_json) {
      const Versions found = versions();
      print_document("version", {{"chassis", found.program}, {"abi", found.abi}, {"libtorch", found.torch}});
    } else {
      std::fputs(version_text().c_str(), output());
    }
    return 0;
  };
}

}  // namespace chassis
