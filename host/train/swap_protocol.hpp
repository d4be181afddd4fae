// The order of a swap: which action follows which, after a success and after a failure. A pure table; LiveSwap carries
// the actions out on all ranks, which agree on the result of each, so that they all take the same way.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace chassis {

enum class SwapAction : uint8_t {
  // Forwards. Until kMigrate, the present state could train on at any time.
  kPrepare,   // read and classify the change, open plugins, compile, plan memory, connect; then the vote
  kQuiesce,   // finish saves; nothing is in flight
  kWitness,   // the loss of a fixed batch, by the present state
  kMigrate,   // move all tensors to the next state
  kActivate,  // make its executor, and let the run use it
  kProve,     // the loss of the same batch must be the same
  kWatch,     // train some steps, and look at their losses and gradients
  kCommit,    // one rename makes the change permanent
  // Backwards.
  kMoveBack,  // all tensors to the state before
  kResume,    // make the executor of the state before
  kDiscard,   // destroy what was made for the next state
  // Ends.
  kRefused,     // nothing of the run has changed
  kCommitted,   // the next state is the present one
  kRolledBack,  // the state before is the present one, with the tensors of now
  kLost,        // tensors are gone: the run ends, and resumes from its last checkpoint
};

enum class SwapEvent : uint8_t {
  kDone,       // all ranks have carried out the action
  kFailed,     // one of them has not, and all know
  kCancelled,  // as kFailed, at the request of the user
  kLost,       // an action could not keep what it promises if it fails
};

constexpr bool is_end(SwapAction action) { return action >= SwapAction::kRefused; }

// The action after `action`, which is not an end. `was_moved`: kMigrate has succeeded before in this
// swap.
SwapAction next_action(SwapAction action, SwapEvent event, bool was_moved);

std::string_view name_of(SwapAction action);  // "migrate"

// One swap.
class SwapProtocol {
 public:
  SwapAction action() const { return action_; }
  bool is_over() const { return is_end(action_); }
  // Returns the next action.
  SwapAction take(SwapEvent event) {
    const SwapAction next = next_action(action_, event, has_moved_);
    if (action_ == SwapAction::kMigrate && event == SwapEvent::kDone) has_moved_ = true;
    return action_ = next;
  }

 private:
  SwapAction action_ = SwapAction::kPrepare;
  bool has_moved_ = false;
};

}  // namespace chassis
