// Records a program: the host's side of chassis_builder_t. Checks operands and dims of every op as it comes in.
#pragma once

#include <functional>
#include <string_view>

#include "host/graph/program.hpp"

namespace chassis {

// Hands a builder table to `record` (a model plugin's record function, or a test) and returns what it recorded.
// Throws an error if operands, dims or names are wrong, or if chains do not fit together.
Program record_program(const std::function<chassis_status_t*(const chassis_builder_t*)>& record);

// Each function does one call of the builder, and throws a plugin error that names the block. Rewrites by plugins use
// them too. The descriptions must come from read_struct().
DimId record_dim(Program& program, std::string name, int64_t size, DimKind kind = DimKind::kFixed);
ParameterSlot record_slot(const Program& program, const BlockType& block, const chassis_slot_desc_t& desc);
Op record_op(const Program& program, BlockType& block, const chassis_op_desc_t& desc);
// Throws unless chains fit together, names of parameters are unique, ties lead to a parameter of the same shape, and
// all sizes fit into 64 bits.
void check_program(const Program& program);

}  // namespace chassis
