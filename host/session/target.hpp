// The device that a session is made for: the one of this rank, or, for checks and plans, one that need not be there.
#pragma once

#include <functional>
#include <optional>

#include "host/config/settings.hpp"
#include "host/launch/world.hpp"
#include "host/plugin/library.hpp"
#include "host/service/device.hpp"

namespace chassis {

struct Target {
  bool without_device = false;       // claims and shapes on the CPU; nothing is allocated
  bool as_configured = false;        // without a device: claims are for the one that run.device names, there or not
  std::optional<Device> as_on = {};  // without a device: claims are for this one
};

// False if no plugin with CUDA code can be of use.
bool may_run_on_cuda(const Settings::Run& run, const Target& target);
// What is known of the GPU when a plugin with CUDA code is loaded; empty if none is asked for. `run` outlives it.
std::function<std::optional<CudaFacts>()> cuda_facts_of(const Settings::Run& run, const Target& target);

// Of this rank. Throws a config error if it is not there.
Device choose_device(const Settings::Run& run, const Target& target, const World& world);
// Gives the pools of LibTorch and of the kernels their number of threads: run.threads, or this rank's part of the
// cores.
void set_rank_threads(const Settings::Run& run, const World& world);
// What precision.compute says for this device. Counts a warning where bf16 is slow.
Dtype compute_dtype(const Settings::Precision& precision, const Target& target, Device device);

}  // namespace chassis
