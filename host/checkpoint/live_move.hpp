// Moves all tensors of a running training from one layout to another among its ranks, in little more memory than the
// larger layout needs, and back if any rank fails. Uses the order and the groups of host/state/move_order.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/service/comm.hpp"
#include "host/service/tensor.hpp"
#include "host/state/reshard_plan.hpp"

namespace chassis {

struct LiveMoveOptions {
  int64_t bucket_bytes = int64_t{16} << 20;  // of each of two buffers: the maximum that a rank sends in a round
  int64_t room_bytes = int64_t{64} << 20;    // beyond the peak of order_moves(), so that more tensors move together
};

// Everything that can be known, and refused, before the training pauses. Groups and numbers are the same on all ranks.
struct LiveMovePlan {
  struct Group {
    std::vector<uint32_t> tensors;
    ReshardPlan moves;  // of this rank, with indices into LiveMovePlan::tensors
  };
  std::vector<ReshardTensor> tensors;
  LiveMoveOptions options;
  std::vector<Group> groups;        // one after the other; tensors with equal layouts are in none, since they are kept
  std::vector<int64_t> peak_bytes;  // by rank: the most that exist of all tensors, without the two buffers
  uint64_t num_rounds = 0;
};

// `tensors` are the same on all ranks, in any order, such as single optimizer states; names are unique, and every
// holder has the values of its elements. Throws a plugin error if shapes or dtypes differ.
LiveMovePlan plan_live_move(std::vector<ReshardTensor> tensors, const LiveMoveOptions& options, int rank);

// Callbacks take the index of a tensor in the plan, and are called only on ranks that hold the tensor on that side, and
// not for tensors that are kept. Local tensors are contiguous, with the layout's dtype and local shape. Callbacks must
// not communicate. If one that returns a tensor throws, all ranks go back; the others must not throw.
struct LiveMove {
  Device device;        // of the buffers, which the communicator serves
  bool verify = false;  // compares checksums of each group before its sources are freed

  std::function<Tensor(uint32_t tensor)> source;    // this rank's source, which exists
  std::function<Tensor(uint32_t tensor)> allocate;  // makes this rank's destination, just before it is written
  std::function<void(uint32_t tensor)> release;     // frees the source: all ranks have their destinations

  // The way back. Padding is not moved: restore() gives it the values that the training expects.
  std::function<Tensor(uint32_t tensor)> restore;  // makes the source again after release()
  std::function<void(uint32_t tensor)> discard;    // frees the destination that allocate() made

  std::function<void(uint32_t round)> on_round;  // for tests: called before each round; if it throws, all ranks go back
};

struct LiveMoveResult {
  uint64_t num_rounds = 0;
  uint64_t sent_bytes = 0;  // by this rank
  uint64_t received_bytes = 0;
  uint64_t local_bytes = 0;  // copied within this rank
  // With `verify`: owned_checksum() of each tensor, added up over all ranks; 0 for tensors that are kept.
  std::vector<uint64_t> checksums;
};

// The way back has failed too: some tensors are lost.
class StateLost : public Error {
 public:
  using Error::Error;
};

// [step][all-ranks] `plan`: that of this rank. `communicator`: that of the run, whose ranks include those of both
// layouts. No rank holds more bytes than the plan says and two buffers; `verify` needs at most 2 MiB more.
//
// After every round the ranks agree whether all of them are fine. If not, the group in progress is discarded, its
// sources being untouched, and finished groups return in reversed order; padding aside, every source then holds the
// bytes that it had. The rank that failed throws its own error, the others that of the lowest rank that failed, as a
// RemoteError. Throws StateLost on all ranks if a rank fails on the way back. A communication error is thrown at once.
LiveMoveResult live_move(const LiveMovePlan& plan, const LiveMove& request, Communicator& communicator);

// The sum over the elements that `rank` owns of a hash of (tensor, index in the global tensor, bytes). The sum over all
// ranks is the same in every layout. Reads at most `slab_bytes` at a time.
uint64_t owned_checksum(const Layout& layout, int rank, uint32_t tensor, const Tensor& local,
                        int64_t slab_bytes = int64_t{1} << 20);

}  // namespace chassis
