// Functions with which adapters and quant schemes change a recorded block. The layout pass rebuilds op lists itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/graph/program.hpp"

namespace chassis {

// Makes an op with outputs by the rules of chassis/op.h. It is not yet in the block's list. `output_dims` as in
// chassis_op_desc_t.
Op make_op(const Program& program, BlockType& block, std::string id, std::string name, std::vector<ValueId> inputs,
           std::vector<SlotId> params, const std::vector<DimId>& output_dims);

// Inserts `ops`, in order, after the op at `op_index`.
void insert_after(BlockType& block, size_t op_index, std::vector<Op> ops);

// Throws an internal error that names `pass` if an op reads a value that nothing before it makes, or a parameter that
// its block does not have.
void check_rewritten(const Program& program, const std::string& pass);

// Drops ops whose outputs nothing reads, and fields that nothing reads then. Parameters and values stay.
void drop_dead_ops(BlockType& block);

// Replaces `from` by `to` in the inputs of ops from `first_op` on, and in the block's outputs.
void replace_uses(BlockType& block, ValueId from, ValueId to, size_t first_op);

}  // namespace chassis
