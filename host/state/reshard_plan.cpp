// Moves of each tensor, cut into slabs and scheduled into rounds.
#include "host/state/reshard_plan.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

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

// By owner: the ranks that may send its elements, in ascending order. Ranks that hold an element in common hold the
// same boxes in the same places, so that any of them can make the owner's copies.
std::vector<std::vector<int>> senders(const std::vector<std::vector<Piece>>& has, bool replicas_are_filled) {
  std::vector<std::vector<int>> out(has.size());
  // An owner's pieces are known by the first element of their first box.
  const auto first_element = [](const std::vector<Piece>& pieces) {
    const Shape& begin = pieces[0].box.begin;
    return std::vector<int64_t>(begin.begin(), begin.end());
  };
  std::map<std::vector<int64_t>, size_t> owners;
  for (size_t r = 0; r < has.size(); ++r)
    if (!has[r].empty() && has[r][0].owned) owners.emplace(first_element(has[r]), r);
  const auto is_same = [](const Piece& a, const Piece& b) { return a.box == b.box && a.local == b.local; };
  for (size_t r = 0; r < has.size(); ++r) {
    if (has[r].empty()) continue;
    if (has[r][0].owned) {
      out[r].push_back(static_cast<int>(r));
    } else if (replicas_are_filled) {
      const auto owner = owners.find(first_element(has[r]));
      if (owner == owners.end()) continue;
      const std::vector<Piece>& owned = has[owner->second];
      if (std::equal(owned.begin(), owned.end(), has[r].begin(), has[r].end(), is_same))
        out[owner->second].push_back(static_cast<int>(r));
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

// The indices of dim 0 from the first to the last of some pieces. Most pairs of ranks have none in common.
struct Extent {
  int64_t begin = 0, end = 0;
  explicit Extent(const std::vector<Piece>& pieces) {
    if (pieces.empty()) return;
    if (pieces[0].box.ndim() == 0) {
      end = 1;
      return;
    }
    begin = pieces[0].box.begin[0];
    for (const Piece& piece : pieces) {
      begin = std::min(begin, piece.box.begin[0]);
      end = std::max(end, piece.box.end[0]);
    }
  }
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

int64_t aligned_bytes(int64_t num_bytes, const ReshardOptions& options) {
  return (num_bytes + options.align_bytes - 1) / options.align_bytes * options.align_bytes;
}

class Scheduler {
 public:
  Scheduler(int num_ranks, const ReshardOptions& options, int rank, ReshardPlan& plan)
      : num_ranks_(static_cast<size_t>(num_ranks)),
        options_(options),
        rank_(rank),
        plan_(plan),
        sent_bytes_(static_cast<size_t>(num_ranks)) {}

  void start_tensor() {
    first_ = plan_.lifetimes.empty() || !options_.in_sequence ? 0 : plan_.lifetimes.back().last_round;
    if (plan_.rounds.empty()) add_round();
    plan_.lifetimes.push_back({first_, first_});
  }

  // The rank that has sent the fewest bytes so far, of several in ascending order.
  int least_loaded(const std::vector<int>& ranks) const {
    return *std::min_element(ranks.begin(), ranks.end(), [&](int a, int b) {
      return sent_bytes_[static_cast<size_t>(a)] < sent_bytes_[static_cast<size_t>(b)];
    });
  }

  // Adds the move to the tensor's first round that has room on both sides.
  void add(ReshardMove move) {
    uint32_t round = first_;
    if (!move.is_local()) {
      const int64_t num_bytes = aligned_bytes(move.num_bytes, options_);
      while (!fits(move, num_bytes, round))
        if (++round == plan_.rounds.size()) add_round();
      remaining(round, move.from_rank, kSend) -= num_bytes;
      remaining(round, move.to_rank, kReceive) -= num_bytes;
      sent_bytes_[static_cast<size_t>(move.from_rank)] += move.num_bytes;
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
  bool fits(const ReshardMove& move, int64_t num_bytes, uint32_t round) {
    return remaining(round, move.from_rank, kSend) >= num_bytes &&
           remaining(round, move.to_rank, kReceive) >= num_bytes;
  }
  void add_round() {
    plan_.rounds.emplace_back();
    remaining_.resize(remaining_.size() + 2 * num_ranks_, options_.budget_bytes);
  }

  size_t num_ranks_;
  const ReshardOptions& options_;
  int rank_;
  ReshardPlan& plan_;
  uint32_t first_ = 0;              // first round of the current tensor
  std::vector<int64_t> remaining_;  // by round, rank and direction
  std::vector<int64_t> sent_bytes_;  // by rank
};

}  // namespace

ReshardPlan plan_reshard(std::span<const ReshardTensor> tensors, const ReshardOptions& options, int rank) {
  int num_ranks = 1;
  for (const ReshardTensor& tensor : tensors)
    num_ranks = std::max({num_ranks, tensor.from.world_size(), tensor.to.world_size()});

  ReshardPlan plan;
  Scheduler scheduler(num_ranks, options, rank, plan);
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    check(tensors[t]);
    const Dtype dtype = tensors[t].from.descriptor().dtype;
    const int64_t element_bytes = size_bytes(dtype);
    CHASSIS_CHECK(aligned_bytes(element_bytes, options) <= options.budget_bytes, "the budget is less than one element");
    const int64_t max_elements = std::max<int64_t>(1, options.budget_bytes / kMovesPerBudget / element_bytes);

    scheduler.start_tensor();
    const RankPieces pieces = rank_pieces(tensors[t], num_ranks, options.replicas_are_filled);
    for (int r = 0; r < num_ranks; ++r)
      for (const Copy& copy : pieces.local[static_cast<size_t>(r)])
        scheduler.add({t, r, r, copy, dtype, numel(copy.box) * element_bytes});
    const std::vector<std::vector<int>> holders = senders(pieces.has, options.replicas_are_filled);
    const std::vector<Extent> have(pieces.has.begin(), pieces.has.end()),
        need(pieces.needs.begin(), pieces.needs.end());
    int64_t missing = num_elements(pieces.needs);
    // Neighbours first, then ranks two apart, and so on, so that all ranks are busy from the start.
    for (int distance = 1; distance < num_ranks; ++distance)
      for (int r = 0; r < num_ranks; ++r) {
        const int receiver = (r + distance) % num_ranks;
        if (!have[static_cast<size_t>(r)].overlaps(need[static_cast<size_t>(receiver)])) continue;
        const auto& needs = pieces.needs[static_cast<size_t>(receiver)];
        for (const Copy& copy : copies(pieces.has[static_cast<size_t>(r)], needs)) {
          missing -= numel(copy.box);
          for_each_slab(copy.box, max_elements, [&](const Box& slab) {
            const int sender = scheduler.least_loaded(holders[static_cast<size_t>(r)]);
            scheduler.add({t, sender, receiver, part_of(copy, slab), dtype, numel(slab) * element_bytes});
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
