// The providers pass, from ops to nodes: every op, or run of ops that a pattern matches, goes to the first provider
// that claims it, or to the cheapest of those that "auto" compares.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/layout_pass.hpp"
#include "host/compile/resolved.hpp"
#include "host/graph/op_id.hpp"

namespace chassis {

// No provider claims an op; the message lists every refusal.
class UnclaimedOp : public Error {
 public:
  UnclaimedOp(OpId op, SourcePosition where, std::string message)
      : Error(ExitCode::kPlugin, std::move(where), std::move(message)), op(std::move(op)) {}
  OpId op;
};

// Throws UnclaimedOp.
ResolvedBlock resolve_block(const Program& program, const ProgramLayout& layout, uint32_t type,
                            std::span<const uint8_t> slot_trainable, bool inputs_need_grad,
                            const ResolveOptions& options);

class ParameterTable;
ResolvedProgram resolve_program(const Program& program, const ProgramLayout& layout, const ParameterTable& parameters,
                                const ResolveOptions& options);

}  // namespace chassis
