// The named pipeline schedules. p is the number of ranks, m the number of micro-batches, v the number of chunks per
// rank, F, B and W the times of forward, backward_inputs and backward_params of all stages of a rank together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "host/state/schedule.hpp"
#include "host/state/schedule_simulation.hpp"

namespace chassis {

// All forwards, then all backwards. Bubble (p-1)(F+B+W), all m activations in flight (Huang et al. 2019).
Schedule gpipe_schedule(int num_ranks, int num_microbatches);
// After p-r-1 forwards, rank r runs forward and backward in turn. Bubble as GPipe, min(m, p-r) activations in flight
// (Narayanan et al. 2019).
Schedule one_f_one_b_schedule(int num_ranks, int num_microbatches);
// 1F1B with v stages per rank: each chunk runs a group of micro-batches, then the next chunk does. Bubble 1/v of that
// of 1F1B if m mod group_size = 0. May deadlock if group_size < p or if the last group is shorter than p (Narayanan et
// al. 2021).
Schedule interleaved_schedule(int num_ranks, int num_chunks, int num_microbatches, int group_size);
// 1F1B whose backward is split; rank r runs backward_params r micro-batches later than backward_inputs, so that it
// fills the bubble. Bubble (p-1)(F+B-W) if W ≤ F, W ≤ B and m ≥ p, up to p activations in flight on each rank (Qi et
// al. 2023).
Schedule zb_h1_schedule(int num_ranks, int num_microbatches);
// ZB-V: two stages per rank, V-shaped. If F = B = W and m ≥ 2p-1, no rank waits between its first and its last entry;
// the ranks start one after the other, so that the bubble is (p-1)F/2. Up to p activations in flight, as 1F1B (Qi et
// al. 2024). `costs`, one element for each of the 2p stages, decide where backward_params run.
Schedule zbv_schedule(int num_ranks, int num_microbatches, std::span<const StageCost> costs);

struct ScheduleRequest {
  std::string name;  // gpipe, 1f1b, interleaved, zb_h1, zbv
  int num_ranks = 1;
  int num_chunks = 1;  // per rank: 1; at least 2 for interleaved, 2 for zbv
  int num_microbatches = 1;
  int group_size = 0;            // interleaved: micro-batches that a chunk runs before the next; 0: num_ranks
  std::vector<StageCost> costs;  // zbv: by stage; empty: all stages cost the same
};
// Throws a config error, with both numbers, if there is no such schedule or it would deadlock.
Schedule make_schedule(const ScheduleRequest& request);

}  // namespace chassis
