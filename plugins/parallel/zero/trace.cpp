#include "trace.hpp"

namespace zero {

bool Trace::visit(uint32_t unit) {
  if (broken_) return true;
  if (state_ == State::kRecording) {
    order_.push_back(unit);
    return true;
  }
  if (next_ < order_.size() && order_[next_] == unit) {
    ++next_;
    return true;
  }
  forget();
  broken_ = true;
  return false;
}

void Trace::end_step() {
  if (broken_) {
    forget();
  } else if (state_ == State::kComplete && next_ != order_.size()) {
    forget();  // a shorter step
  } else if (!order_.empty()) {
    state_ = State::kComplete;
  }
  next_ = 0;
}

void Trace::forget() {
  state_ = State::kRecording;
  broken_ = false;
  order_.clear();
  next_ = 0;
}

}  // namespace zero
