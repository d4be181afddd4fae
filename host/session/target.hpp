// The device of a session: this rank's, or, for checks and plans, one that this machine need not have.
#pragma once

#include <functional>
#include <optional>

#include "host/base/device_types.hpp"
#include "host/config/settings.hpp"
#include "host/launch/world.hpp"
#include "host/service/device.hpp"

namespace chassis {

struct Target {
  bool without_device = false;                // claims and shapes are computed on the CPU; nothing is allocated
  bool assume_configured_device = false;      // without a device: claims are for run.device, present or not
  std::optional<Device> assumed_device = {};  // without a device: claims are for this device
};

// False if the session cannot use plugins with code for this type of accelerators.
bool may_run_on(const DeviceSpec& accelerator, const Settings::Run& run, const Target& target);
// Returns the versions of the session's device when a plugin with code for its type is loaded; empty if the session
// uses no accelerator. `run` outlives it.
std::function<std::optional<DeviceVersions>(const DeviceSpec&)> device_versions_of(const Settings::Run& run,
                                                                                   const Target& target);

// The device of this rank. Throws a config error if the machine does not have it.
Device choose_device(const Settings::Run& run, const Target& target, const World& world);
// More threads than this only wait for each other; thousands bring a small machine to a halt.
int64_t max_rank_threads();
// The threads that a rank will have if it is one of `num_ranks` on this machine: see set_rank_threads.
int64_t planned_rank_threads(const Settings::Run& run, int64_t num_ranks);
// Sets the number of threads of LibTorch's and the kernels' pools: run.threads, with a counted warning where it is
// above the maximum, else OMP_NUM_THREADS, else this rank's part of the cores. Counts a warning if OMP_NUM_THREADS is
// not a number of threads.
void set_rank_threads(const Settings::Run& run, const World& world);
// The dtype that precision.compute means on this device. Counts a warning if bf16 is slow there.
Dtype compute_dtype(const Settings::Precision& precision, const Target& target, Device device);

}  // namespace chassis
