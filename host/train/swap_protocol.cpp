// The table of a swap.
#include "host/train/swap_protocol.hpp"

namespace chassis {

SwapAction next_action(SwapAction action, SwapEvent event, bool was_moved) {
  using A = SwapAction;
  if (event == SwapEvent::kLost) return A::kLost;
  if (action == A::kDiscard) return was_moved ? A::kRolledBack : A::kRefused;  // what is left over takes only memory
  if (event == SwapEvent::kDone) {
    switch (action) {
      case A::kPrepare:
        return A::kQuiesce;
      case A::kQuiesce:
        return A::kWitness;
      case A::kWitness:
        return A::kMigrate;
      case A::kMigrate:
        return A::kActivate;
      case A::kActivate:
        return A::kProve;
      case A::kProve:
        return A::kWatch;
      case A::kWatch:
        return A::kCommit;
      case A::kCommit:
        return A::kCommitted;
      case A::kMoveBack:
        return A::kResume;
      case A::kResume:
        return A::kDiscard;
      default:
        return action;
    }
  }
  switch (action) {
    case A::kPrepare:
    case A::kQuiesce:
    case A::kWitness:
      return A::kDiscard;  // the present state was never touched
    case A::kMigrate:      // the move has turned round by itself, but the executor is gone
      return A::kResume;
    case A::kActivate:
    case A::kProve:
    case A::kWatch:
    case A::kCommit:
      return A::kMoveBack;
    default:
      return A::kLost;  // a way back has failed
  }
}

std::string_view name_of(SwapAction action) {
  switch (action) {
    case SwapAction::kPrepare:
      return "prepare";
    case SwapAction::kQuiesce:
      return "quiesce";
    case SwapAction::kWitness:
      return "witness";
    case SwapAction::kMigrate:
      return "migrate";
    case SwapAction::kActivate:
      return "activate";
    case SwapAction::kProve:
      return "prove";
    case SwapAction::kWatch:
      return "watch";
    case SwapAction::kCommit:
      return "commit";
    case SwapAction::kMoveBack:
      return "move back";
    case SwapAction::kResume:
      return "resume";
    case SwapAction::kDiscard:
      return "discard";
    case SwapAction::kRefused:
      return "refused";
    case SwapAction::kCommitted:
      return "committed";
    case SwapAction::kRolledBack:
      return "rolled back";
    case SwapAction::kLost:
      return "lost";
  }
  return "";
}

}  // namespace chassis
