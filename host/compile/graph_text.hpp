// The resolved program as text, for `chassis check --graph`.
#pragma once

#include <string>

#include "host/compile/compile.hpp"

namespace chassis {

// The program as it trains: what each pass did or refused; then each block type once, with its collectives and its
// nodes: their providers and shapes, the tensors that they keep and save, and the providers that refused them.
std::string graph_text(const CompiledProgram& compiled);

}  // namespace chassis
