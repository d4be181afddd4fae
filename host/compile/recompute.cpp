// The order of the choices, and which units they apply to.
#include "host/compile/recompute.hpp"

#include <algorithm>
#include <cstddef>

#include "host/compile/resolved.hpp"
#include "host/graph/program.hpp"

namespace chassis {

Recompute recompute_of_cost(int64_t cost, int64_t num_blocks) {
  if (cost < num_blocks) return {0, cost};
  const int64_t full = cost - num_blocks;
  return full < num_blocks ? Recompute{full, Recompute::kAll} : Recompute::kFull;
}

int64_t max_recomputed_blocks(const Program& program) {
  size_t longest = 1;
  for (const Chain& chain : program.chains) longest = std::max(longest, chain.blocks.size());
  return longest > 1 ? static_cast<int64_t>(longest) : 0;
}

std::vector<BlockRecompute> recompute_of_units(const Program& program, const Recompute& recompute) {
  std::vector<BlockRecompute> modes;
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i)
      modes.push_back(chain.blocks.size() > 1 ? recompute.at(static_cast<int64_t>(i)) : BlockRecompute::kNone);
  return modes;
}

void apply_recompute(const Program& program, const Recompute& recompute, ResolvedProgram& resolved) {
  if (resolved.purpose == Purpose::kTraining) resolved.recompute = recompute_of_units(program, recompute);
}

}  // namespace chassis
