// The rows of collectives.
#include "host/graph/collective_ops.hpp"

#include <iterator>

#include "host/base/error.hpp"

namespace chassis {
namespace {

constexpr bool kHasDim = true, kCheap = true;

constexpr CommSpec kRows[] = {
    {CommOp::kNone, ""},
    {CommOp::kCopy, "comm.copy", CommOp::kAllReduce, false, kCheap},
    {CommOp::kAllReduce, "comm.all_reduce", CommOp::kCopy},
    {.op = CommOp::kAllGather,
     .name = "comm.all_gather",
     .dual = CommOp::kReduceScatter,
     .has_dim = true,
     .drops_padding = true},
    {CommOp::kReduceScatter, "comm.reduce_scatter", CommOp::kAllGather, kHasDim},
    {.op = CommOp::kAllToAll,
     .name = "comm.all_to_all",
     .dual = CommOp::kAllToAll,
     .has_dim = true,
     .drops_padding = true},
    {.op = CommOp::kGather, .name = "comm.gather", .dual = CommOp::kSplit, .has_dim = true, .drops_padding = true},
    {CommOp::kSplit, "comm.split", CommOp::kGather, kHasDim, kCheap},
    {CommOp::kLogSumExp, "comm.log_sum_exp"},
    {CommOp::kSlice, "comm.slice", CommOp::kNone, kHasDim, kCheap},
    {CommOp::kTake, "comm.take", CommOp::kNone, kHasDim, kCheap},
    {CommOp::kShift, "comm.shift", CommOp::kShiftBack},
    {CommOp::kShiftBack, "comm.shift_back", CommOp::kShift},
    {CommOp::kChunk, "comm.chunk", CommOp::kNone, false, kCheap},
    {CommOp::kPut, "comm.put"},
    {CommOp::kSum, "comm.sum"},
};

constexpr bool is_in_order() {
  for (size_t i = 0; i < std::size(kRows); ++i)
    if (static_cast<size_t>(kRows[i].op) != i) return false;
  return true;
}
static_assert(is_in_order());

}  // namespace

const CommSpec& comm_spec(CommOp op) {
  CHASSIS_CHECK(static_cast<size_t>(op) < std::size(kRows), "a collective of the table");
  return kRows[static_cast<size_t>(op)];
}

}  // namespace chassis
