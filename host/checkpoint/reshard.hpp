// Carries out a reshard plan among the ranks of a run: round by round, all to all, through two buffers that hold what a
// rank sends and receives in one round.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "host/checkpoint/local_tensors.hpp"
#include "host/service/comm.hpp"
#include "host/state/reshard.hpp"

namespace chassis {

struct ReshardRequest {
  std::span<const ReshardTensor> tensors;
  ReshardOptions options;
  // Asked for in the first round that touches a tensor. The same tensors where nothing changes its place, as in a
  // broadcast to replicas; dtypes may differ.
  LocalTensors from;
  LocalTensors to;
  Device device;  // where they lie
  // Called when this rank has sent and received all of a tensor, in order: its source may go.
  std::function<void(uint32_t tensor)> on_done;
};

struct ReshardResult {
  uint64_t num_rounds = 0;
  uint64_t sent_bytes = 0;  // by this rank
  uint64_t received_bytes = 0;
};

// [step][all-ranks] With the communicator of the run.
ReshardResult reshard(const ReshardRequest& request, Communicator& communicator);

// [step][all-ranks] After LoadOptions::owned_only: brings to every holder what only the owners have read.
ReshardResult fill_replicas(std::span<const Descriptor> tensors, const LocalTensors& local, Device device,
                            int64_t budget_bytes, Communicator& communicator);

}  // namespace chassis
