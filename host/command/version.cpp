// `chassis version`: the versions of the program, its ABI and LibTorch, and the devices on which it can run here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "chassis/abi.h"
#include "host/base/device_types.hpp"
#include "host/base/json.hpp"
#include "host/base/output.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/plugin/search.hpp"
#include "host/service/device.hpp"
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

// A type of devices on this machine, and the installed plugins that bring code for it.
struct DeviceLine {
  const DeviceSpec& spec;
  std::string problem;  // why it cannot be used; may be empty
  std::string model;    // "NVIDIA H200"; empty if it cannot be used
  std::vector<std::string> plugins;
};

std::vector<DeviceLine> device_lines() {
  const PluginIndex installed({plugin_folders({}, {}, {}).back()});
  std::vector<DeviceLine> lines;
  for (const DeviceSpec& spec : device_specs()) {
    if (!spec.can_run) continue;
    lines.push_back({spec, load_device_type(spec), "", {}});
    DeviceLine& line = lines.back();
    if (line.problem.empty()) line.model = device_name(device_of(spec));
    for (const PluginFile& file : installed.files())
      if (file.manifest.code_for(spec) != nullptr) line.plugins.push_back(file.manifest.id);
  }
  return lines;
}

// "devices: the CPU; CUDA (no CUDA driver: …), code for it in nccl, bnb4". Only the page that it names says what has
// run on an accelerator.
std::string devices_text() {
  std::string text;
  for (const DeviceLine& line : device_lines()) {
    text += fmt::format("{}{}", text.empty() ? "devices: " : "; ", line.spec.title);
    if (!line.spec.accelerator) continue;
    text += fmt::format(" ({})", line.problem.empty() ? line.model : line.problem);
    text += line.plugins.empty() ? ", no plugin with code for it"
                                 : fmt::format(", code for it in {}", fmt::join(line.plugins, ", "));
  }
  return text + "; docs/gpu.md: what has run on a GPU\n";
}

Json devices_json() {
  Json all = Json::array();
  for (const DeviceLine& line : device_lines()) {
    const auto known = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
    all.push_back({{"name", line.spec.name},
                   {"usable", line.problem.empty()},
                   {"problem", known(line.problem)},
                   {"model", known(line.model)},
                   {"plugins", line.plugins}});
  }
  return all;
}

}  // namespace

std::string version_text() {
  const Versions found = versions();
  return fmt::format("chassis {}\nABI {}\nLibTorch {}\n{}", found.program, found.abi, found.torch, devices_text());
}

Verb add_version(CLI::App& app) {
  auto as_json = std::make_shared<bool>(false);
  add_json(app, *as_json);
  return [=] {
    if (*as_json) {
      const Versions found = versions();
      print_document(
          "version",
          {{"chassis", found.program}, {"abi", found.abi}, {"libtorch", found.torch}, {"devices", devices_json()}});
    } else {
      std::fputs(version_text().c_str(), output());
    }
    return 0;
  };
}

}  // namespace chassis
