// The bytes and rounds of a swap from one configuration of a run to another, computed by one process before it starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/config/config.hpp"

namespace chassis {

struct SwapPlan {
  int world_size = 0;
  std::string from, to;  // the meshes, as text
  uint64_t num_tensors = 0, num_kept = 0;
  uint64_t num_rounds = 0;
  uint64_t sent_bytes = 0;                                // by all ranks
  uint64_t most_sent_bytes = 0, most_received_bytes = 0;  // by one rank
  uint64_t most_local_bytes = 0;                          // copied within one rank
  // Bytes of parameters and states on the rank that has most: before or after, whichever is more; during the move,
  // with two buffers.
  uint64_t floor_bytes = 0, peak_bytes = 0;
  uint64_t largest_tensor_bytes = 0;  // of one rank's part of a tensor
};

// `world_size` 0: the product of the sizes in [mesh] of `from`. Throws what the swap would be refused for.
SwapPlan plan_swap(const Config& from, const Config& to, const std::vector<std::string>& plugin_path, int world_size);

std::string swap_plan_text(const SwapPlan& plan);
Json swap_plan_json(const SwapPlan& plan);

}  // namespace chassis
