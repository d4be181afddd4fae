// The resolved program as text, for `chassis check --graph`.
#pragma once

#include <string>

#include "host/program/compile.hpp"

namespace chassis {

// As it trains: what each pass did or refused; then each block type once, its nodes with provider, shapes, what they
// keep and save, collectives, and who refused.
std::string graph_text(CompiledProgram& compiled);

}  // namespace chassis
