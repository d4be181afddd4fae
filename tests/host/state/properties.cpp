// The checks, each with its own brute-force computation.
#include "tests/host/state/properties.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/state/composite.hpp"
#include "host/state/cover.hpp"
#include "host/state/intersect.hpp"
#include "host/state/move_order.hpp"
#include "host/state/reshard_plan.hpp"
#include "tests/host/state/random_layout.hpp"

namespace chassis::testing {

namespace {

void count(const Box& box, const Shape& shape, std::vector<int>& counts) {
  const Shape strides = row_major_strides(shape);
  Shape at = box.begin;
  for (int64_t left = numel(box); left > 0; --left) {
    int64_t id = 0;
    for (int k = 0; k < shape.ndim(); ++k) id += at[k] * strides[k];
    ++counts[static_cast<size_t>(id)];
    for (int k = shape.ndim() - 1; k >= 0; --k) {
      if (++at[k] < box.end[k]) break;
      at[k] = box.begin[k];
    }
  }
}

// True if every maximal run of elements begins and ends at a block.
bool cut_at_blocks(const std::vector<int>& mine, int64_t block) {
  const auto n = static_cast<int64_t>(mine.size());
  for (int64_t k = 1; k < n; ++k)
    if (k % block != 0 && (mine[static_cast<size_t>(k)] != 0) != (mine[static_cast<size_t>(k) - 1] != 0)) return false;
  return true;
}

int64_t element_number(const Shape& at, const Shape& shape) {
  const Shape strides = row_major_strides(shape);
  int64_t id = 0;
  for (int k = 0; k < shape.ndim(); ++k) id += at[k] * strides[k];
  return id;
}

}  // namespace

void check_layout(uint64_t seed) {
  Dice dice(seed);
  const MeshShape mesh = random_mesh(dice, 64);
  const Shape shape = random_shape(dice, 160);
  const Layout layout(random_descriptor(dice, mesh, shape), mesh);
  const Descriptor& d = layout.descriptor();
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + d.text() + " on " + mesh.text());

  const int64_t block = d.block_elements();
  const auto total = static_cast<size_t>(numel(shape));
  std::vector<int> owners(total);
  bool legal = true;
  Cover cover(mesh.world_size());
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const LocalArray expected = local_array(d, mesh, rank);
    const std::vector<Piece> pieces = layout.pieces(rank);
    ASSERT_EQ(layout.holds(rank), expected.held) << "rank " << rank;
    ASSERT_EQ(layout.local_shape(rank), expected.shape)
        << "rank " << rank << " " << text(layout.local_shape(rank)) << " " << text(expected.shape);
    ASSERT_EQ(fill_from_pieces(layout, rank, pieces), expected.elements) << "rank " << rank;

    std::vector<int> mine(total);
    for (const Piece& piece : pieces)
      if (piece.owned) count(piece.box, shape, mine);
    for (size_t k = 0; k < total; ++k) owners[k] += mine[k];
    legal &= cut_at_blocks(mine, block);
    cover.declare(layout, rank);

    const bool plain = d.padded_shape == shape &&
                       std::none_of(d.placements.begin(), d.placements.end(),
                                    [](const Placement& p) { return p.kind == Placement::Kind::kDimChunk; });
    if (plain && shape.ndim() > 0) {
      ASSERT_LE(pieces.size(), static_cast<size_t>(2 * shape.ndim() - 1));
    }
  }
  for (size_t k = 0; k < total; ++k) ASSERT_EQ(owners[k], 1) << "element " << k;

  const std::vector<CoverFault> faults = cover.faults();
  if (faults.empty()) {
    ASSERT_TRUE(legal) << "cut within a block of " << block;
  } else {
    ASSERT_EQ(faults[0].cause, CoverFault::Cause::kIllegalCut) << faults[0].message;
  }
  // Cuts of dim 0 and even flat partitions are always legal.
  const bool always_legal =
      d.padded_shape == shape && std::all_of(d.placements.begin(), d.placements.end(), [](const Placement& p) {
        return (p.kind != Placement::Kind::kDimChunk || p.dim == 0) && p.ranges.empty();
      });
  if (always_legal) {
    ASSERT_TRUE(faults.empty()) << faults[0].message;
  }
}

void check_round_trip(uint64_t seed) {
  Dice dice(seed);
  const Shape shape = random_shape(dice, 120);
  const MeshShape mesh_a = random_mesh(dice, dice.chance(10) ? 64 : 12);
  const MeshShape mesh_b = random_mesh(dice, dice.chance(10) ? 64 : 12);
  const Layout a(random_descriptor(dice, mesh_a, shape), mesh_a);
  const Layout b(random_descriptor(dice, mesh_b, shape), mesh_b);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + a.descriptor().text() + " on " + mesh_a.text() + "  →  " +
               b.descriptor().text() + " on " + mesh_b.text());

  using Buffers = std::vector<std::vector<int64_t>>;
  const auto load = [&](const Layout& layout) {
    Buffers out;
    for (int rank = 0; rank < layout.world_size(); ++rank)
      out.push_back(local_array(layout.descriptor(), layout.mesh(), rank).elements);
    return out;
  };
  const auto move = [&](const Layout& from, const Buffers& source, const Layout& to) {
    std::vector<std::vector<Piece>> held(static_cast<size_t>(from.world_size()));
    for (int rank = 0; rank < from.world_size(); ++rank) held[static_cast<size_t>(rank)] = from.pieces(rank);
    Buffers out;
    for (int j = 0; j < to.world_size(); ++j) {
      std::vector<int64_t> local(static_cast<size_t>(numel(to.local_shape(j))), -1);
      const std::vector<Piece> wanted = to.pieces(j);
      for (const auto& pieces : held)
        for (const Copy& copy : copies(pieces, wanted)) {
          const auto& sender = source[static_cast<size_t>(&pieces - held.data())];
          for_each_run(copy, [&](int64_t from_offset, int64_t to_offset, int64_t length) {
            for (int64_t k = 0; k < length; ++k) {
              int64_t& slot = local.at(static_cast<size_t>(to_offset + k));
              slot = slot == -1 ? sender.at(static_cast<size_t>(from_offset + k)) : -2;
            }
          });
        }
      out.push_back(std::move(local));
    }
    return out;
  };
  const Buffers at_a = load(a);
  const Buffers at_b = move(a, at_a, b);
  ASSERT_EQ(at_b, load(b));
  ASSERT_EQ(move(b, at_b, a), at_a);
}

namespace {

using Elements = std::vector<std::vector<std::vector<int64_t>>>;  // by tensor and rank, as the oracle numbers them

Elements elements_of(const std::vector<ReshardTensor>& tensors, Layout ReshardTensor::*side) {
  Elements out(tensors.size());
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Layout& layout = tensors[t].*side;
    for (int rank = 0; rank < layout.world_size(); ++rank)
      out[t].push_back(local_array(layout.descriptor(), layout.mesh(), rank).elements);
  }
  return out;
}

// Executes the plan. Checks the budget of every round, the lifetime of every tensor, and that elements are written
// once.
void carry_out(const ReshardPlan& plan, const std::vector<ReshardTensor>& tensors, const ReshardOptions& options,
               int num_ranks, const Elements& from, Elements& to) {
  ASSERT_EQ(plan.lifetimes.size(), tensors.size());
  to.assign(tensors.size(), {});
  for (size_t t = 0; t < tensors.size(); ++t)
    for (int rank = 0; rank < tensors[t].to.world_size(); ++rank)
      to[t].emplace_back(static_cast<size_t>(numel(tensors[t].to.local_shape(rank))), -1);
  for (uint32_t r = 0; r < plan.rounds.size(); ++r) {
    std::vector<int64_t> out(static_cast<size_t>(num_ranks)), in(out.size());
    for (const ReshardMove& move : plan.rounds[r].moves) {
      const auto sender = static_cast<size_t>(move.from_rank), receiver = static_cast<size_t>(move.to_rank);
      ASSERT_GE(r, plan.lifetimes[move.tensor].first_round);
      ASSERT_LE(r, plan.lifetimes[move.tensor].last_round);
      ASSERT_EQ(move.num_bytes, numel(move.copy.box) * 4);
      if (!move.is_local()) out[sender] += move.num_bytes, in[receiver] += move.num_bytes;
      ASSERT_TRUE(move.is_local() || !plan.rounds[r].is_local);
      for_each_run(move.copy, [&](int64_t at, int64_t where, int64_t length) {
        for (int64_t k = 0; k < length; ++k) {
          int64_t& slot = to[move.tensor][receiver].at(static_cast<size_t>(where + k));
          slot = slot == -1 ? from[move.tensor][sender].at(static_cast<size_t>(at + k)) : -2;
        }
      });
    }
    for (size_t rank = 0; rank < out.size(); ++rank) {
      ASSERT_LE(out[rank], options.budget_bytes) << "sent by rank " << rank << " in round " << r;
      ASSERT_LE(in[rank], options.budget_bytes) << "received by rank " << rank << " in round " << r;
    }
  }
  for (size_t t = 1; t < tensors.size(); ++t)
    ASSERT_EQ(plan.lifetimes[t].first_round, options.in_sequence ? plan.lifetimes[t - 1].last_round : 0);
}

}  // namespace

void check_reshard(uint64_t seed) {
  Dice dice(seed);
  const int max_world = dice.chance(10) ? 64 : 10;
  const MeshShape mesh_a = random_mesh(dice, max_world), mesh_b = random_mesh(dice, max_world);
  const bool is_broadcast = dice.chance(25);
  std::vector<ReshardTensor> tensors, back;
  for (int64_t n = dice.roll(1, 4); n > 0; --n) {
    const Shape shape = random_shape(dice, 120);
    Layout from(random_descriptor(dice, mesh_a, shape), mesh_a);
    tensors.push_back({from, is_broadcast ? from : Layout(random_descriptor(dice, mesh_b, shape), mesh_b)});
    back.push_back({tensors.back().to, tensors.back().from});
  }
  ReshardOptions options;
  options.budget_bytes = 4 * dice.roll(1, dice.chance(50) ? 8 : 200);
  options.replicas_are_filled = !is_broadcast && dice.chance(70);
  options.in_sequence = dice.chance(70);
  const int num_ranks = std::max(mesh_a.world_size(), mesh_b.world_size());
  std::string trace = "seed " + std::to_string(seed) + ", budget " + std::to_string(options.budget_bytes);
  for (const ReshardTensor& t : tensors)
    trace += "\n" + t.from.descriptor().text() + " on " + mesh_a.text() + "  →  " + t.to.descriptor().text() + " on " +
             t.to.mesh().text();
  SCOPED_TRACE(trace);

  const ReshardPlan plan = plan_reshard(tensors, options, -1);
  const Elements at_a = elements_of(tensors, &ReshardTensor::from);
  Elements at_b, again;
  ASSERT_NO_FATAL_FAILURE(carry_out(plan, tensors, options, num_ranks, at_a, at_b));
  ASSERT_EQ(at_b, elements_of(tensors, &ReshardTensor::to));
  ReshardOptions filled = options;
  filled.replicas_are_filled = true;  // the first plan has filled them
  ASSERT_NO_FATAL_FAILURE(carry_out(plan_reshard(back, filled, -1), back, filled, num_ranks, at_b, again));
  ASSERT_EQ(again, at_a);

  const int one = static_cast<int>(dice.roll(0, num_ranks - 1));
  const ReshardPlan mine = plan_reshard(tensors, options, one);
  ASSERT_EQ(mine.rounds.size(), plan.rounds.size());
  ASSERT_EQ(mine.sent_bytes, plan.sent_bytes);
  for (size_t r = 0; r < plan.rounds.size(); ++r) {
    std::vector<ReshardMove> expected;
    for (const ReshardMove& move : plan.rounds[r].moves)
      if (move.from_rank == one || move.to_rank == one) expected.push_back(move);
    ASSERT_EQ(mine.rounds[r].is_local, plan.rounds[r].is_local);
    ASSERT_EQ(mine.rounds[r].moves.size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) {
      ASSERT_EQ(mine.rounds[r].moves[k].copy.box, expected[k].copy.box);
      ASSERT_EQ(mine.rounds[r].moves[k].copy.from, expected[k].copy.from);
      ASSERT_EQ(mine.rounds[r].moves[k].copy.to, expected[k].copy.to);
    }
  }
}

namespace {

// The most bytes by rank if items move one at a time in this order.
std::vector<int64_t> peak_of(const std::vector<MovedItem>& items, const std::vector<uint32_t>& order, size_t num_ranks,
                             bool is_back) {
  std::vector<int64_t> peak(num_ranks), now(num_ranks);
  const auto add = [&](const std::vector<int64_t>& bytes, int64_t sign) {
    for (size_t r = 0; r < bytes.size(); ++r) {
      now[r] += sign * bytes[r];
      peak[r] = std::max(peak[r], now[r]);
    }
  };
  for (const MovedItem& item : items) add(is_back ? item.after : item.before, 1);
  for (const uint32_t i : order) {
    add(is_back ? items[i].before : items[i].after, 1);
    add(is_back ? items[i].after : items[i].before, -1);
  }
  return peak;
}

int64_t largest(const std::vector<MovedItem>& items) {
  int64_t out = 0;
  for (const MovedItem& item : items)
    for (const auto* bytes : {&item.before, &item.after})
      for (const int64_t b : *bytes) out = std::max(out, b);
  return out;
}

void check_order(Dice& dice, const std::vector<MovedItem>& items, const MoveOrder& order) {
  const size_t num_ranks = order.peak.size();
  std::vector<uint32_t> expected, found = order.order;
  for (uint32_t i = 0; i < items.size(); ++i)
    if (!items[i].in_place) expected.push_back(i);
  std::sort(found.begin(), found.end());
  ASSERT_EQ(found, expected);
  ASSERT_EQ(order.peak, peak_of(items, order.order, num_ranks, false));
  const std::vector<uint32_t> reversed(order.order.rbegin(), order.order.rend());
  ASSERT_EQ(order.peak, peak_of(items, reversed, num_ranks, true));

  std::vector<MovedItem> shuffled;
  for (const MovedItem& item : items)
    shuffled.insert(shuffled.begin() + dice.roll(0, static_cast<int64_t>(shuffled.size())), item);
  const MoveOrder again = order_moves(shuffled);
  ASSERT_EQ(again.peak, order.peak);
  ASSERT_EQ(again.floor, order.floor);
  for (size_t k = 0; k < found.size(); ++k) ASSERT_EQ(shuffled[again.order[k]].name, items[order.order[k]].name);

  const int64_t room_bytes = dice.roll(0, 2000);
  const std::vector<int64_t> with_groups = swap_memory(items, room_bytes);
  ASSERT_EQ(with_groups.size(), num_ranks);
  for (size_t r = 0; r < num_ranks; ++r) {
    ASSERT_GE(with_groups[r], order.peak[r]);
    ASSERT_LE(with_groups[r], order.peak[r] + room_bytes);
  }
}

}  // namespace

void check_move_order(uint64_t seed) {
  Dice dice(seed);
  const int max_world = dice.chance(10) ? 64 : 10;
  const MeshShape mesh_a = random_mesh(dice, max_world), mesh_b = random_mesh(dice, max_world);
  std::vector<ReshardTensor> tensors;
  for (int64_t n = dice.roll(1, dice.chance(20) ? 60 : 8); n > 0; --n) {
    const Shape shape = random_shape(dice, 120);
    const Descriptor from = random_descriptor(dice, mesh_a, shape);
    Descriptor to = dice.chance(20) && mesh_a.text() == mesh_b.text() ? from : random_descriptor(dice, mesh_b, shape);
    to.fqn = "t" + std::to_string(tensors.size());
    tensors.push_back({Layout(from, mesh_a), Layout(to, mesh_b)});
  }
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<MovedItem> items = moved_items(tensors);
  for (size_t t = 0; t < items.size(); ++t)
    if (items[t].in_place) {
      ASSERT_EQ(elements_of({tensors[t]}, &ReshardTensor::from), elements_of({tensors[t]}, &ReshardTensor::to));
      ASSERT_EQ(items[t].before, items[t].after);
    }
  const MoveOrder order = order_moves(items);
  ASSERT_NO_FATAL_FAILURE(check_order(dice, items, order));
  for (size_t r = 0; r < order.peak.size(); ++r) ASSERT_LE(order.peak[r], order.floor[r] + 2 * largest(items));
}

void check_move_order_of_sizes(uint64_t seed) {
  Dice dice(seed);
  std::vector<MovedItem> items;
  const int64_t num_ranks = dice.roll(1, 12);
  const int64_t max_bytes = dice.chance(30) ? 3 : 1000;
  for (int64_t n = dice.roll(1, dice.chance(20) ? 60 : 8); n > 0; --n) {
    MovedItem item;
    item.name = "t" + std::to_string(n);
    for (int64_t r = 0; r < num_ranks; ++r) {
      item.before.push_back(dice.chance(40) ? 0 : dice.roll(0, max_bytes));
      item.after.push_back(dice.chance(40) ? 0 : dice.roll(0, max_bytes));
    }
    items.push_back(std::move(item));
  }
  SCOPED_TRACE("seed " + std::to_string(seed));
  const MoveOrder order = order_moves(items);
  ASSERT_NO_FATAL_FAILURE(check_order(dice, items, order));
  ASSERT_LE(*std::max_element(order.peak.begin(), order.peak.end()),
            *std::max_element(order.floor.begin(), order.floor.end()) + 2 * largest(items));
}

void check_damaged_cover(uint64_t seed) {
  Dice dice(seed);
  const MeshShape mesh = random_mesh(dice, 16);
  Shape shape = random_shape(dice, 150);
  Descriptor d = random_descriptor(dice, mesh, shape);
  d.granularity = Granularity::element();
  const Layout layout(d, mesh);
  std::vector<std::pair<int, Box>> claims;
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    for (const Box& box : layout.owned_boxes(rank)) claims.push_back({rank, box});
  if (claims.empty()) return;

  for (int64_t damages = dice.roll(1, 3); damages > 0 && !claims.empty(); --damages) {
    const auto victim = static_cast<size_t>(dice.roll(0, static_cast<int64_t>(claims.size()) - 1));
    const int64_t kind = dice.roll(0, 2);
    if (kind == 0) {
      claims.erase(claims.begin() + static_cast<std::ptrdiff_t>(victim));
    } else if (kind == 1 || shape.ndim() == 0) {
      claims.push_back({static_cast<int>(dice.roll(0, mesh.world_size() - 1)), claims[victim].second});
    } else {
      const int k = static_cast<int>(dice.roll(0, shape.ndim() - 1));
      claims[victim].second.begin[k] = dice.roll(0, shape[k]);
      claims[victim].second.end[k] = dice.roll(claims[victim].second.begin[k], shape[k]);
    }
  }
  std::vector<int> counts(static_cast<size_t>(numel(shape)));
  Cover cover(mesh.world_size());
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::vector<Box> owned;
    for (const auto& [claimant, box] : claims)
      if (claimant == rank) owned.push_back(box);
    cover.declare(d, rank, owned);
  }
  for (const auto& [rank, box] : claims) count(box, shape, counts);
  const auto wrong = std::find_if(counts.begin(), counts.end(), [](int c) { return c != 1; });

  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + d.text() + " on " + mesh.text());
  const std::vector<CoverFault> faults = cover.faults();
  ASSERT_EQ(faults.empty(), wrong == counts.end());
  if (faults.empty()) return;
  const CoverFault& fault = faults[0];
  using Cause = CoverFault::Cause;
  const bool is_gap = fault.cause == Cause::kGap || fault.cause == Cause::kMissingRankState;
  ASSERT_EQ(is_gap, *wrong == 0) << fault.message;
  const auto first = static_cast<int64_t>(wrong - counts.begin());
  if (is_gap) {
    ASSERT_EQ(element_number(fault.where.begin, shape), first) << fault.message;
    std::vector<int> gap(counts.size());
    count(fault.where, shape, gap);
    for (size_t k = 0; k < gap.size(); ++k) ASSERT_TRUE(gap[k] == 0 || counts[k] == 0) << fault.message;
  } else {
    ASSERT_GE(fault.rank_a, 0);
    ASSERT_GE(fault.rank_b, 0);
    std::vector<int> shared(counts.size());
    count(fault.where, shape, shared);
    ASSERT_EQ(shared[static_cast<size_t>(first)], 1) << fault.message;
  }
}

void check_composite(uint64_t seed) {
  Dice dice(seed);
  const MeshShape mesh = random_mesh(dice, 32);
  const int64_t unit = int64_t{2} << dice.roll(0, 2);
  const int64_t nested = unit * dice.roll(1, 4);
  const bool whole_units = dice.chance(60);
  const bool three_dims = dice.chance(30);
  Shape shape = three_dims ? Shape{dice.roll(1, 3), dice.roll(1, 6), 0} : Shape{dice.roll(1, 12), 0};
  const int last = shape.ndim() - 1;
  shape[last] = whole_units ? nested * dice.roll(1, 3) : dice.roll(1, 20);

  Descriptor d = Descriptor::plain("w", Dtype::bf16, shape);
  d.components = {
      Component::per_unit("", Dtype::u8, unit, unit / 2), Component::per_unit(".absmax", Dtype::u8, unit, 1),
      Component::per_unit(".nested_absmax", Dtype::f32, nested, 1), Component::whole(".quant_map", Dtype::f32, {16})};
  std::vector<int> order;
  for (int k = 0; k < mesh.num_axes(); ++k) order.insert(order.begin() + dice.roll(0, k), k);
  bool flat = false;
  for (int axis : order) {
    const std::vector<std::string> axes = {mesh.axes()[static_cast<size_t>(axis)].name};
    if (dice.chance(20)) continue;
    if (!flat && dice.chance(70)) {
      Placement p = Placement::dim_chunk(axes, whole_units ? static_cast<int>(dice.roll(0, last)) : 0);
      if (dice.chance(20)) p.unit = dice.roll(1, 3);
      d.placements.push_back(p);
    } else {
      d.placements.push_back(Placement::flat_range(axes));
      flat = true;
    }
  }
  const Layout layout(d, mesh);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": unit " + std::to_string(unit) + ", nested " +
               std::to_string(nested) + ", " + d.text() + " on " + mesh.text());
  prove_cover({&layout, 1});

  for (const Component& component : d.components) {
    const Layout part(component_descriptor(d, component), mesh);
    prove_cover({&part, 1});
    if (component.unit_elements == 0) continue;
    const Shape& part_shape = part.descriptor().global_shape;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      std::vector<int> elements(static_cast<size_t>(numel(shape)));
      for (const Box& box : layout.boxes(rank)) count(box, shape, elements);
      std::vector<int> expected(static_cast<size_t>(numel(part_shape))), actual(expected.size());
      for (size_t e = 0; e < elements.size(); ++e)
        if (elements[e] != 0)
          for (int64_t v = 0; v < component.unit_values; ++v)
            expected[e / static_cast<size_t>(component.unit_elements) * static_cast<size_t>(component.unit_values) +
                     static_cast<size_t>(v)] = 1;
      for (const Box& box : part.boxes(rank)) count(box, part_shape, actual);
      ASSERT_EQ(actual, expected) << component.suffix << " on rank " << rank;
    }
  }
}

bool check_key(uint64_t seed) {
  Dice dice(seed);
  const MeshShape mesh = random_mesh(dice, 32);
  const Descriptor d = random_descriptor(dice, mesh, random_shape(dice, 300));
  Descriptor other = d;
  other.fqn = "layer." + std::to_string(dice.roll(0, 99));
  other.dtype = Dtype::bf16;
  Placement* const placement =
      other.placements.empty()
          ? nullptr
          : &other.placements[static_cast<size_t>(dice.roll(0, static_cast<int64_t>(other.placements.size()) - 1))];
  const int64_t change = dice.roll(0, 9);  // the last numbers change nothing else
  if (change == 1) other.owner = other.owner == OwnerRule::kSpread ? OwnerRule::kFirst : OwnerRule::kSpread;
  if (change == 2) other.owner = OwnerRule::kGiven, other.owner_replica = static_cast<int>(dice.roll(0, 3));
  if (change == 3) other.granularity = Granularity::block_of(dice.roll(1, 9));
  if (change == 4 && placement) placement->unit += 1;
  if (change == 5 && placement) placement->pad_even = !placement->pad_even;
  if (change == 6 && placement) placement->copies.clear();
  if (change == 7 && placement) placement->ranges.clear();
  try {
    const Layout a(d, mesh), b(other, mesh);
    if (a.key() != b.key()) return false;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      EXPECT_EQ(a.boxes(rank), b.boxes(rank)) << "seed " << seed << ": " << d.text();
      EXPECT_EQ(a.owned_boxes(rank), b.owned_boxes(rank)) << "seed " << seed << ": " << d.text();
    }
    return true;
  } catch (const Error&) {  // the change is not valid
    return false;
  }
}

}  // namespace chassis::testing
