// Moves of each tensor, cut into slabs and scheduled into rounds.
#include "host/state/reshard_plan.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "host/base/error.hpp"

namespace chassis {
namespace {

// Small moves fill a round better: if a move does not fit, one side of the round is at least 3/4 full.
constexpr int64_t kMovesPerBudget = 4;

Copy part_of(const Copy& copy, const Box& part) {
  Copy out = copy;
  out.box = part;
  for (int k = 0; k < part.ndim(); ++k) {
    out.from.offset += (part.begin[k] - copy.box.begin[k]) * copy.from.strides[k];
    out.to.offset += (part.begin[k] - copy.box.begin[k]) * copy.to.strides[k];
  }
  return out;
}

// Cuts a box into slabs of at most max_elements along the first dims.
template <class Visit>
void for_each_slab(const Box& box, int64_t max_elements, const Visit& visit) {
  if (numel(box) <= max_elements) return visit(box);
  int dim = 0;
  while (box.end[dim] - box.begin[dim] == 1) ++dim;
  const int64_t inner = numel(box) / (box.end[dim] - box.begin[dim]);
  const int64_t thickness = std::max<int64_t>(1, max_elements / inner);
  for (int64_t at = box.begin[dim]; at < box.end[dim]; at += thickness) {
    Box slab = box;
    slab.begin[dim] = at;
    slab.end[dim] = std::min(at + thickness, box.end[dim]);
    for_each_slab(slab, max_elements, visit);
  }
}

// Appends `piece` without the elements of `hole`, as pieces.
void subtract(const Piece& piece, const Box& hole, std::vector<Piece>& out) {
  const Box common = intersection(piece.box, hole);
  if (common.empty()) return out.push_back(piece);
  Box rest = piece.box;
  const auto keep = [&](const Box& box) { out.push_back({box, piece.view(box), piece.owned}); };
  for (int k = 0; k < rest.ndim(); ++k) {
    Box side = rest;
    side.end[k] = common.begin[k];
    if (!side.empty()) keep(side);
    side = rest;
    side.begin[k] = common.end[k];
    if (!side.empty()) keep(side);
    rest.begin[k] = common.begin[k];
    rest.end[k] = common.end[k];
  }
}

// By rank: the pieces that it has, those that it needs from other ranks, and the copies within the rank.
struct RankPieces {
  std::vector<std::vector<Piece>> has, needs;
  std::vector<std::vector<Copy>> local;
};

RankPieces rank_pieces(const ReshardTensor& tensor, int num_ranks, bool replicas_are_filled) {
  RankPieces out;
  out.has.resize(static_cast<size_t>(num_ranks));
  out.needs.resize(static_cast<size_t>(num_ranks));
  out.local.resize(static_cast<size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    if (rank < tensor.from.world_size()) out.has[r] = tensor.from.pieces(rank);
    if (rank < tensor.to.world_size()) out.needs[r] = tensor.to.pieces(rank);
    std::vector<Piece> own = out.has[r];
    if (replicas_are_filled)
      for (Piece& piece : own) piece.owned = true;
    out.local[r] = copies(own, out.needs[r]);
    for (const Copy& copy : out.local[r]) {
      std::vector<Piece> rest;
      for (const Piece& piece : out.needs[r]) subtract(piece, copy.box, rest);
      out.needs[r] = std::move(rest);
    }
  }
  return out;
}

void check(const ReshardTensor& tensor) {
  const Descriptor &from = tensor.from.descriptor(), &to = tensor.to.descriptor();
  if (from.global_shape != to.global_shape)
    throw plugin_error("tensor '" + to.fqn + "' has shape " + text(to.global_shape) + ", its source '" + from.fqn +
                       "' " + text(from.global_shape));
}

int64_t num_elements(const std::vector<std::vector<Piece>>& pieces) {
  int64_t sum = 0;
  for (const auto& of_rank : pieces)
    for (const Piece& piece : of_rank) sum += numel(piece.box);
  return sum;
}

class Scheduler {
 public:
  Scheduler(int num_ranks, int64_t budget_bytes, int rank, ReshardPlan& plan)
      : num_ranks_(static_cast<size_t>(num_ranks)), budget_bytes_(budget_bytes), rank_(rank), plan_(plan) {}

  void start_tensor() {
    first_ = plan_.lifetimes.empty() ? 0 : plan_.lifetimes.back().last_round;
    if (plan_.rounds.empty()) add_round();
    plan_.lifetimes.push_back({first_, first_});
  }

  // Adds the move to the tensor's first round that has room on both sides.
  void add(ReshardMove move) {
    uint32_t round = first_;
    if (!move.is_local()) {
      while (!fits(move, round))
        if (++round == plan_.rounds.size()) add_round();
      remaining(round, move.from_rank, kSend) -= move.num_bytes;
      remaining(round, move.to_rank, kReceive) -= move.num_bytes;
      plan_.rounds[round].is_local = false;
      plan_.sent_bytes += move.num_bytes;
    }
    plan_.lifetimes.back().last_round = std::max(plan_.lifetimes.back().last_round, round);
    if (rank_ < 0 || move.from_rank == rank_ || move.to_rank == rank_)
      plan_.rounds[round].moves.push_back(std::move(move));
  }

 private:
  enum Direction : size_t { kSend, kReceive };

  int64_t& remaining(uint32_t round, int rank, Direction direction) {
    return remaining_[(round * num_ranks_ + static_cast<size_t>(rank)) * 2 + direction];
  }
  bool fits(const ReshardMove& move, uint32_t round) {
    return remaining(round, move.from_rank, kSend) >= move.num_bytes &&
           remaining(round, move.to_rank, kReceive) >= move.num_bytes;
  }
  void add_round() {
    plan_.rounds.emplace_back();
    remaining_.resize(remaining_.size() + 2 * num_ranks_, budget_bytes_);
  }

  size_t num_ranks_;
  int64_t budget_bytes_;
  int rank_;
  ReshardPlan& plan_;
  uint32_t first_ = 0;              // first round of the current tensor
  std::vector<int64_t> remaining_;  // by round, rank and direction
};

}  // namespace

ReshardPlan plan_reshard(std::span<const ReshardTensor> tensors, const ReshardOptions& options, int rank) {
  int num_ranks = 1;
  for (const ReshardTensor& tensor : tensors)
    num_ranks = std::max({num_ranks, tensor.from.world_size(), tensor.to.world_size()});

  ReshardPlan plan;
  Scheduler scheduler(num_ranks, options.budget_bytes, rank, plan);
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    check(tensors[t]);
    const int64_t element_bytes = size_bytes(tensors[t].from.descriptor().dtype);
    CHASSIS_CHECK(element_bytes <= options.budget_bytes, "the budget is less than one element");
    const int64_t max_elements = std::max<int64_t>(1, options.budget_bytes / kMovesPerBudget / element_bytes);

    scheduler.start_tensor();
    const RankPieces pieces = rank_pieces(tensors[t], num_ranks, options.replicas_are_filled);
    for (int r = 0; r < num_ranks; ++r)
      for (const Copy& copy : pieces.local[static_cast<size_t>(r)])
        scheduler.add({t, r, r, copy, numel(copy.box) * element_bytes});
    int64_t missing = num_elements(pieces.needs);
    // Neighbours first, then ranks two apart, and so on, so that all ranks are busy from the start.
    for (int distance = 1; distance < num_ranks; ++distance)
      for (int r = 0; r < num_ranks; ++r) {
        const int receiver = (r + distance) % num_ranks;
        const auto& needs = pieces.needs[static_cast<size_t>(receiver)];
        for (const Copy& copy : copies(pieces.has[static_cast<size_t>(r)], needs)) {
          missing -= numel(copy.box);
          for_each_slab(copy.box, max_elements, [&](const Box& slab) {
            scheduler.add({t, r, receiver, part_of(copy, slab), numel(slab) * element_bytes});
          });
        }
      }
    if (missing != 0)
      throw plugin_error("tensor '" + tensors[t].from.descriptor().fqn + "': " + std::to_string(std::abs(missing)) +
                         " elements have " + (missing > 0 ? "no owner" : "two owners"));
  }
  return plan;
}

}  // namespace chassis
