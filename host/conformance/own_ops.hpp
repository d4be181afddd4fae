// Conformance tests of the ops that a plugin adds: whether they mix only the dims that the model declares.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "host/program/resolve.hpp"

namespace chassis {

// True if a block has an op that is no op of chassis/op.h.
bool has_own_ops(const Program& program);

// [step] All failures, with block, op, dim and both numbers; empty if none. Computes each own op that declares its
// mixed dims, forward and backward, with random values on the CPU in fp32: whole, and in two parts of every dim of its
// operands that it does not mix, rows included. Parts must give the parts of the whole, and their sum where a result
// lacks the dim. A provider that refuses the size of a part is not asked further.
std::vector<std::string> own_op_failures(const Program& program, std::span<const OpsProvider> providers);

}  // namespace chassis
