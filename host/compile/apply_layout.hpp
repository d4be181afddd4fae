// The layout pass.
#pragma once

#include <span>

#include "host/compile/layout_pass.hpp"

namespace chassis {

// Throws a config error if a dim cannot be divided, or if an op has no meaning for the placements of its operands.
ProgramLayout apply_layout(Program& program, std::span<const LayoutStrategy* const> stack);

}  // namespace chassis
