// Asks the strategies of [[parallel]] what they divide and where parameters live, and checks that each axis and each
// parameter has exactly one strategy.
#pragma once

#include <string>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/compile/pipeline.hpp"
#include "host/graph/program.hpp"
#include "host/parallel/resolve_arguments.hpp"
#include "host/parallel/shard_rule.hpp"
#include "host/parallel/stack_context.hpp"
#include "host/parallel/strategies.hpp"

namespace chassis {

// The same on every rank, except for `here`.
struct StackAnswers {
  std::vector<double> unit_costs;  // by unit: operations per token
  Pipeline pipeline;
  std::vector<std::vector<std::string>> axes;  // by strategy: axes that it serves
  std::vector<std::string> data_axes;          // data axes that a strategy serves, in the order of the mesh
  // By parameter of the table, with the rules as the strategies gave them.
  std::vector<ParameterPlacement> placements;
  RankUnits here;  // this rank's stages
};

// [control] Throws a config error, where possible with the position of the table to change, if an axis has no strategy
// or two, a strategy has no axis, or two strategies place one parameter; a plugin error if no strategy places one.
StackAnswers ask_strategies(Strategies& strategies, const Program& program, const ParameterTable& parameters,
                            const StackContext& facts);

// [control] Asks new instances for the rank of `facts` what they must be asked before bind. Their answers equal those
// that are known. Returns the stages of that rank.
RankUnits repeat_questions(Strategies& strategies, const Program& program, const ParameterTable& parameters,
                           const StackContext& facts, const StackAnswers& known);

}  // namespace chassis
