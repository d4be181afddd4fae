// Reports of what passes did to a program or refused to do, and why; for `chassis check --graph`.
#pragma once

#include <string>
#include <vector>

#include "host/compile/layout_pass.hpp"
#include "host/compile/recompute.hpp"
#include "host/compile/resolve.hpp"
#include "host/graph/program.hpp"

namespace chassis {

struct PassReport {
  std::string pass;     // "providers"
  std::string subject;  // "sdpa", "layer.q_proj"; empty: the whole program
  std::string what;     // what the pass did, or why it did nothing
};

// Each but the last returns at least one report.
std::vector<PassReport> report_of_record(const Program& program);
// Also counts a warning for the linears of adapters that no ring overlaps.
std::vector<PassReport> report_of_layout(const Program& program, const ProgramLayout& layout);
std::vector<PassReport> report_of_providers(const ResolvedProgram& resolved, const ResolveOptions& options);
std::vector<PassReport> report_of_recompute(const ResolvedProgram& resolved, const Recompute& recompute,
                                            const std::string& reason);
std::vector<PassReport> report_of_liveness(const ResolvedProgram& resolved);
// Empty unless the program is one for generation.
std::vector<PassReport> report_of_cache(const ResolvedProgram& resolved, const ResolveOptions& options);

// One line per report.
std::string text(const std::vector<PassReport>& reports);

}  // namespace chassis
