// Conformance tests of the ops that a plugin adds: whether they mix only the dims that the model declares.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "host/compile/resolve.hpp"

namespace chassis {

// True if a block has an op that chassis/op.h does not define.
bool has_own_ops(const Program& program);

// [step] All failures, with block, op, dim and both numbers; empty if none. Computes each own op that declares its
// mixed dims, forward and backward, with random values on the CPU in fp32: whole, and in two parts of every dim of its
// operands that it does not mix, rows included. Parts must give the parts of the whole, and their sum if a result lacks
// the dim. A dim is skipped if a provider refuses the size of a part.
std::vector<std::string> own_op_failures(const Program& program, std::span<const OpsProvider> providers);

}  // namespace chassis
