// The resolved program as text, for `chassis check --graph`.
#pragma once

#include <string>

#include "host/program/layout.hpp"
#include "host/program/program.hpp"
#include "host/program/resolve.hpp"

namespace chassis {

// Each block type once: its nodes with provider, shapes, what they keep and save, collectives, and who refused.
std::string graph_text(const Program& program, const ProgramLayout& layout, const ResolvedProgram& resolved,
                       const ResolveOptions& options);

}  // namespace chassis
