// The order in which a step fetches units, recorded in one step and used in later ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero {

class Trace {
 public:
  // Called before a unit is used. Returns false if the trace has another unit here; the next step then records a new
  // trace.
  bool visit(uint32_t unit);
  // Called at the end of the step.
  void end_step();
  void forget();

  // The units after the last visit, nearest first; none while recording.
  const uint32_t* begin_ahead() const { return recording_ ? nullptr : order_.data() + next_; }
  size_t num_ahead() const { return recording_ ? 0 : order_.size() - next_; }

 private:
  bool recording_ = true;
  bool diverged_ = false;  // this step does not follow the trace
  std::vector<uint32_t> order_;
  size_t next_ = 0;
};

}  // namespace zero
