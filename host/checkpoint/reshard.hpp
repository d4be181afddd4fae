// Executes a reshard plan among the ranks of a run: one all-to-all per round, through two buffers that hold what a rank
// sends and receives in one round.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "host/checkpoint/local_tensors.hpp"
#include "host/service/comm.hpp"
#include "host/state/reshard_plan.hpp"

namespace chassis {

struct ReshardRequest {
  std::span<const ReshardTensor> tensors;
  ReshardOptions options;
  // Called in the first round that uses a tensor. Both return the same tensor if no element moves within a rank, as in
  // a broadcast to replicas. Dtypes may differ.
  LocalTensors from;
  LocalTensors to;
  Device device;  // of the buffers, which the communicator serves; tensors may be on the CPU
  // Called in order when this rank has sent and received all of a tensor: its source may be freed.
  std::function<void(uint32_t tensor)> on_done;
};

struct ReshardResult {
  uint64_t num_rounds = 0;
  uint64_t sent_bytes = 0;  // by this rank
  uint64_t received_bytes = 0;
};

// [step][all-ranks] `communicator`: that of the run.
ReshardResult reshard(const ReshardRequest& request, Communicator& communicator);

// [step][all-ranks] After a load with LoadOptions::owned_only: sends what the owners read to all other holders.
ReshardResult fill_replicas(std::span<const Descriptor> tensors, const LocalTensors& local, Device device,
                            int64_t budget_bytes, Communicator& communicator);

}  // namespace chassis
