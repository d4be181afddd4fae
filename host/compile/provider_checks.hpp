// Checks of ops providers apart from their nodes: that their tables are valid, and that each chosen provider is used.
#pragma once

#include "host/compile/resolve.hpp"

namespace chassis {

// Throws a plugin error if a table lacks a function that every provider needs, or a pattern names no op.
void check_provider(const OpsProvider& provider);

// Counts a warning, with the first refusal, for each provider that the user chose and that claims no node, and for each
// provider that was asked and refused every node. Candidates of "auto" may be idle.
void count_idle_providers(const ResolvedProgram& program, const ResolveOptions& options);

}  // namespace chassis
