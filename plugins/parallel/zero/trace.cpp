// Records the order of units in one step and compares later steps with it.
#include "trace.hpp"

namespace zero {

bool Trace::visit(uint32_t unit) {
  if (diverged_) return true;
  if (recording_) {
    order_.push_back(unit);
    return true;
  }
  if (next_ < order_.size() && order_[next_] == unit) {
    ++next_;
    return true;
  }
  forget();
  diverged_ = true;
  return false;
}

void Trace::end_step() {
  if (diverged_) {
    forget();
  } else if (!recording_ && next_ != order_.size()) {
    forget();  // the step was shorter
  } else if (!order_.empty()) {
    recording_ = false;
  }
  next_ = 0;
}

void Trace::forget() {
  recording_ = true;
  diverged_ = false;
  order_.clear();
  next_ = 0;
}

}  // namespace zero
