// What the host proves of ops providers beside their nodes: tables that make sense, and that each one chosen is of use.
#pragma once

#include "host/program/resolve.hpp"

namespace chassis {

// Throws a plugin error if a table lacks a function that every provider needs, or a pattern names no op.
void check_provider(const OpsProvider& provider);

// A provider that the user chose and that claims no node is a counted warning with the first reason it gave; so is one
// that was asked and refused every node. Candidates of "auto" may be idle.
void count_idle_providers(const ResolvedProgram& program, const ResolveOptions& options);

}  // namespace chassis
