// The order in which a step fetches units, learnt from one step and followed in the next ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero {

class Trace {
 public:
  enum class State { kRecording, kComplete };

  // A unit is about to be used; false if the trace said otherwise, and is learnt anew from the next step on.
  bool visit(uint32_t unit);
  // The step is over.
  void end_step();
  void forget();

  State state() const { return state_; }
  // What comes after the visit that was last, nearest first; nothing while recording.
  const uint32_t* begin_ahead() const { return state_ == State::kComplete ? order_.data() + next_ : nullptr; }
  size_t num_ahead() const { return state_ == State::kComplete ? order_.size() - next_ : 0; }

 private:
  State state_ = State::kRecording;
  bool broken_ = false;  // this step does not follow the trace
  std::vector<uint32_t> order_;
  size_t next_ = 0;
};

}  // namespace zero
