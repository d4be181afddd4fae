// The types of devices, and what the host asks of each. Only device_types.cpp names the types other than "cpu" and
// "meta". The file is in host/base because the schema of [run] needs it; what LibTorch knows of a device is in
// host/service/device.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

// The versions that the device code of a plugin must match.
struct DeviceVersions {
  int toolkit = 0;           // major version of the toolkit that LibTorch uses, such as 13
  std::string architecture;  // of the device, spelled like a target: "90"
  int driver = 0;            // the newest major version of the toolkit that the driver supports
};

// The driver of a type of devices, LibTorch's library for it, and the code that plugins bring for it. The functions
// load the driver on demand. Any thread may call them.
struct AcceleratorSpec {
  const char* driver_library;                       // for dlopen
  const char* torch_library;                        // likewise
  std::array<std::string_view, 3> torch_libraries;  // stems of libraries of which a process can hold only one version

  // The number of devices that this process may use; 0 without a driver. Forks of a process that has called it cannot
  // use the devices.
  int (*num_visible)();
  // Such as "NVIDIA H200". Empty if the driver cannot say.
  std::string (*device_name)(int index);
  // The driver and torch_library must be loaded. nullopt if the driver cannot say.
  std::optional<DeviceVersions> (*versions)(int index);
  // Bytes of shared memory that one block of threads may use, static and dynamic together. nullopt without a driver or
  // a device. Forks cannot use the devices afterwards, as with num_visible.
  std::optional<uint64_t> (*shared_memory_limit)(int index);
  // In °C. nullopt without a driver or a sensor.
  std::optional<double> (*temperature)(int index);

  std::string_view toolkit_key;      // in the manifest of a plugin: major version of the toolkit that built its code
  std::string_view toolkit_form;     // what the value must be, for messages
  std::string_view targets_key;      // in the manifest: the targets of the code, separated by commas
  std::string_view targets_form;     // as toolkit_form
  std::string_view runtime_library;  // how the file name of the toolkit's shared run-time library begins
  // A target in its usual spelling; empty if the text is not a target.
  std::string (*read_target)(std::string_view text);
  // Whether code for a target, as read_target returns it, runs on a device of this architecture.
  bool (*runs_on)(std::string_view target, std::string_view architecture);
};

struct DeviceSpec {
  uint32_t id;                    // CHASSIS_DEVICE_…
  std::string_view name;          // in run.device, in texts such as "cpu", and in LibTorch
  std::string_view title;         // in messages: "the CPU"
  std::string_view foreign_name;  // what other trainers call it; may be empty
  bool can_run;                   // run.device may name it
  bool has_index;                 // a machine may have several: texts end in ":0"
  bool has_memory;
  bool has_own_memory;    // apart from the host's: plans, limits and counters are those of the device
  bool has_streams;       // work is queued on streams, and copies and collectives are ordered by them
  bool pins_host_memory;  // copies from and to page-locked memory of the host need no staging
  bool has_bf16;          // every device has bf16 matrix instructions, and precision.compute = "auto" uses them
  const AcceleratorSpec* accelerator = nullptr;  // NULL: nothing is loaded, and plugins need no code of their own
};

// "auto" takes the first accelerator that this machine has.
std::span<const DeviceSpec> device_specs();
// NULL if `id` is not in the table.
const DeviceSpec* find_device_spec(uint32_t id);
// The type that run.device names: "cpu", or with an index "NAME:1". NULL for "auto" and for other texts.
const DeviceSpec* device_spec_named(std::string_view setting);
// The names that run.device may have, beside "auto".
std::vector<std::string> device_names();
// The titles of the types that `is_meant` returns true for: "the CPU and X", with " and " as the last separator.
std::string device_titles(bool (*is_meant)(const DeviceSpec&), std::string_view last_separator);

}  // namespace chassis
