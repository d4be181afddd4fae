// Moves the parameters and optimizer states of a run to another state of the same session, which divides them
// differently.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host/checkpoint/live_move.hpp"
#include "host/session/run_state.hpp"

namespace chassis {

struct TransferResult {
  uint64_t num_tensors = 0;  // of parameters, components and states
  uint64_t num_kept = 0;     // with equal layouts: their memory goes on as it is
  LiveMoveResult moved;
};

class StateTransfer {
 public:
  // Compares what the two states store; allocates nothing. Throws a config error that names a tensor that only one of
  // them has, or that has another dtype or shape in the other. Both outlive it.
  // `rank`: whose moves it plans; kAllRanks for plans alone.
  static constexpr int kAllRanks = -1, kOwnRank = -2;
  StateTransfer(RunState& from, RunState& to, int rank = kOwnRank);

  const LiveMovePlan& plan() const { return plan_; }

  // The most bytes of parameters and states that `rank` holds during the move, with two buffers.
  uint64_t peak_bytes(int rank) const {
    return static_cast<uint64_t>(plan_.peak_bytes[static_cast<size_t>(rank)] + 2 * kBucketBytes);
  }
  // The bytes that a rank holds before, or after, whichever are more.
  uint64_t floor_bytes(int rank) const { return floor_bytes_[static_cast<size_t>(rank)]; }
  uint64_t largest_tensor_bytes() const { return largest_bytes_; }  // on any rank

  // [step][all-ranks] Neither state has an executor or events. Afterwards `to` has all tensors, and `from` none. Throws
  // as live_move() does; then it is the other way round, except after StateLost.
  TransferResult run(Communicator& communicator);
  // [step][all-ranks] After run(): back again.
  TransferResult run_back(Communicator& communicator);

 private:
  static constexpr int64_t kBucketBytes = 16 << 20;  // as in LiveMoveOptions
  enum class Kind { kParameter, kComponent, kState };
  // A tensor in one of the two states.
  struct Place {
    Kind kind = Kind::kParameter;
    size_t index = 0;      // of the parameter or state
    size_t component = 0;  // kComponent
  };
  struct Side {
    RunState* state = nullptr;
    std::vector<Place> places;  // by tensor
  };

  struct Listed {
    std::vector<Descriptor> descriptors;
    std::vector<Place> places;
    std::vector<size_t> scalars;  // indices of optimizer states of one number
  };
  static Listed list(RunState& state);
  void require_alike(const Listed& from, const Listed& to) const;

  LiveMovePlan plan_move(std::vector<ReshardTensor> tensors) const;
  TransferResult move(Side& from, Side& to, const LiveMovePlan& plan, Communicator& communicator);
  void keep(Side& from, Side& to, size_t tensor, const Layout& layout);
  // Copies a tensor with equal layouts to the memory where the other state has it.
  void rehouse(Side& from, Side& to, size_t tensor, const ReshardTensor& layouts);
  // Makes the tensors of which this rank stores nothing, and values that are not gathered.
  static void complete(RunState& state);
  void move_scalars(RunState& from, RunState& to, Communicator& communicator) const;
  static Parameter& parameter(const Side& side, size_t tensor);
  static Tensor tensor(const Side& side, size_t tensor, const Layout& layout);
  static void allocate(Side& side, size_t tensor);
  static void release(Side& side, size_t tensor);

  Side from_, to_;
  LiveMovePlan plan_;            // has all tensors, those that are kept too
  std::vector<char> in_place_;   // equal layouts
  std::vector<char> rehoused_;   // in place, but in host memory on one side alone
  std::vector<size_t> scalars_;  // indices of states, the same in both
  const int rank_;
  std::vector<uint64_t> floor_bytes_;
  uint64_t largest_bytes_ = 0;
};

}  // namespace chassis
