// Chooses the order in which tensors go from one layout to another, so that ranks hold little more than before or
// after. Pure arithmetic, the same on every rank. host/checkpoint/live_move.hpp moves them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "host/state/reshard_plan.hpp"

namespace chassis {

// One tensor that moves, such as a single optimizer state of a parameter: its bytes on every rank. Items with fewer
// ranks than others have no bytes on the rest.
struct MovedItem {
  std::string name;  // unique
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  bool in_place = false;  // the layouts are equal, so that the tensor is kept
};

// The items of tensors, with their names under `to`.
std::vector<MovedItem> moved_items(std::span<const ReshardTensor> tensors);

struct MoveOrder {
  std::vector<uint32_t> order;  // the items that are not in place
  // By rank: the most bytes that it holds if items move one at a time, and each exists twice while it moves.
  std::vector<int64_t> peak;
  std::vector<int64_t> floor;  // by rank: the bytes before or after, whichever are more
};

// Takes next the item after which the fullest rank holds least; then the one after which ranks are most even, by the
// sum of squares; then the one that needs least while it moves; then the one whose name comes first. The order of
// `items` does not matter. The reversed order leads back through the same states.
//
// With random layouts, every rank stays within its floor plus twice the largest local tensor. With arbitrary sizes only
// the fullest rank does: one that holds less may exceed its own floor by more, since the fullest alone decides.
MoveOrder order_moves(std::span<const MovedItem> items);

// Cuts an order into runs of items that move together: as many as keep every rank within its peak plus `room_bytes`,
// if all items of a run exist twice while they move. Items that go to different ranks thus move at the same time.
using MoveGroups = std::vector<std::vector<uint32_t>>;
MoveGroups group_moves(std::span<const MovedItem> items, const MoveOrder& order, int64_t room_bytes);

// By rank: the most bytes that it holds in a live move of these groups, without the move's two buffers. The way back
// needs the same.
std::vector<int64_t> swap_memory(std::span<const MovedItem> items, const MoveGroups& groups);
std::vector<int64_t> swap_memory(std::span<const MovedItem> items, int64_t room_bytes);

}  // namespace chassis
