// What passes change a recorded block with. Adapters add branches with it; the layout pass has its own walk.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/program/program.hpp"

namespace chassis {

// A new op with outputs by the rules of chassis/op.h, not in the block's list yet. `output_dims` as in
// chassis_op_desc_t.
Op make_op(const Program& program, BlockType& block, std::string id, std::string name, std::vector<ValueId> inputs,
           std::vector<SlotId> params, const std::vector<DimId>& output_dims);

// Puts `ops` behind the op at `op_index`, in order.
void insert_after(BlockType& block, size_t op_index, std::vector<Op> ops);

// Throws an internal error that names `pass` if it left an op that reads what nothing before it makes, or a parameter
// that its block does not have.
void check_rewritten(const Program& program, const std::string& pass);

// Ops from `first_op` on, and the block's outputs, read `to` where they read `from`.
void replace_uses(BlockType& block, ValueId from, ValueId to, size_t first_op);

}  // namespace chassis
