// The position of the step in progress: phase, micro-batch, unit and node. It is for reports of a failure, so it is
// written by the thread of the step, and an exception leaves it as it was. The number of the step is in
// host/plugin/call.hpp.
#pragma once

#include <cstdint>
#include <string>

namespace chassis {

struct StepPlace {
  const char* phase = "";  // "forward", "backward", "optimizer" …
  int microbatch = -1;     // -1: none
  int64_t unit = -1;       // likewise
  const std::string* node = nullptr;
};

// [any] A few relaxed stores each. A phase is a literal; a node's name outlives the place.
void enter_phase(const char* phase, int microbatch = -1) noexcept;  // in no unit
void enter_unit(const char* phase, int microbatch, int64_t unit) noexcept;
void enter_node(const std::string* node) noexcept;
StepPlace step_place() noexcept;

}  // namespace chassis
