// Compiles both configurations for rank 0, and plans the moves of all ranks.
#include "host/plan/swap_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/log_capture.hpp"
#include "host/base/units.hpp"
#include "host/plan/plan.hpp"
#include "host/save/state_transfer.hpp"
#include "host/session/session.hpp"

namespace chassis {
SwapPlan plan_swap(const Config& from, const Config& to, const std::vector<std::string>& plugin_path, int world_size) {
  if (world_size == 0) world_size = world_size_of(from.settings());
  Session before(from, plan_options(plugin_path, world_size, 0));
  std::optional<Session> after;
  {
    const log::CapturedWarnings known;  // the first session has already logged them
    after.emplace(to, plan_options(plugin_path, world_size, 0));
  }
  const StateTransfer transfer(before.state(), after->state(), StateTransfer::kAllRanks);
  SwapPlan plan;
  plan.world_size = world_size;
  plan.from = before.mesh().text();
  plan.to = after->mesh().text();
  const LiveMovePlan& moves = transfer.plan();
  plan.num_tensors = moves.tensors.size();
  plan.num_kept = moves.tensors.size();
  plan.num_rounds = moves.num_rounds;
  std::vector<uint64_t> sent(static_cast<size_t>(world_size)), received(sent), local(sent);
  for (const LiveMovePlan::Group& group : moves.groups) {
    plan.num_kept -= group.tensors.size();
    for (const ReshardPlan::Round& round : group.moves.rounds)
      for (const ReshardMove& move : round.moves) {
        const auto bytes = static_cast<uint64_t>(move.num_bytes);
        if (move.is_local()) {
          local[static_cast<size_t>(move.to_rank)] += bytes;
          continue;
        }
        sent[static_cast<size_t>(move.from_rank)] += bytes;
        received[static_cast<size_t>(move.to_rank)] += bytes;
        plan.sent_bytes += bytes;
      }
  }
  plan.most_sent_bytes = std::ranges::max(sent);
  plan.most_received_bytes = std::ranges::max(received);
  plan.most_local_bytes = std::ranges::max(local);
  for (int rank = 0; rank < world_size; ++rank) {
    plan.floor_bytes = std::max(plan.floor_bytes, transfer.floor_bytes(rank));
    plan.peak_bytes = std::max(plan.peak_bytes, transfer.peak_bytes(rank));
  }
  plan.largest_tensor_bytes = transfer.largest_tensor_bytes();
  return plan;
}

std::string swap_plan_text(const SwapPlan& plan) {
  const uint64_t most = std::max(plan.most_sent_bytes, plan.most_received_bytes);
  const auto seconds = [&](double gb_per_s) { return static_cast<double>(most) / (gb_per_s * 1e9); };
  std::string text = fmt::format("swap on {} ranks: {} -> {}\n", plan.world_size, plan.from, plan.to);
  text += fmt::format("  {} of {} tensors keep their memory; the others move in {} rounds\n", plan.num_kept,
                      plan.num_tensors, plan.num_rounds);
  text += fmt::format("  the ranks send {} in all; one sends at most {}, receives {}, and copies {} within itself\n",
                      bytes_text(plan.sent_bytes), bytes_text(plan.most_sent_bytes),
                      bytes_text(plan.most_received_bytes), bytes_text(plan.most_local_bytes));
  text += fmt::format(
      "  parameters and optimizer states need at most {} on a rank during the move, and {} before or after; the "
      "largest part of a tensor has {}\n",
      bytes_text(plan.peak_bytes), bytes_text(plan.floor_bytes), bytes_text(plan.largest_tensor_bytes));
  text += fmt::format("  sending takes {:.2g} s at 1 GB/s a rank, {:.2g} s at 10, {:.2g} s at 50\n", seconds(1),
                      seconds(10), seconds(50));
  return text;
}

Json swap_plan_json(const SwapPlan& plan) {
  return {{"world_size", plan.world_size},
          {"from", plan.from},
          {"to", plan.to},
          {"num_tensors", plan.num_tensors},
          {"num_kept", plan.num_kept},
          {"num_rounds", plan.num_rounds},
          {"sent_bytes", plan.sent_bytes},
          {"most_sent_bytes", plan.most_sent_bytes},
          {"most_received_bytes", plan.most_received_bytes},
          {"most_local_bytes", plan.most_local_bytes},
          {"floor_bytes", plan.floor_bytes},
          {"peak_bytes", plan.peak_bytes},
          {"largest_tensor_bytes", plan.largest_tensor_bytes}};
}

}  // namespace chassis
