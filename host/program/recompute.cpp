#include "host/program/recompute.hpp"

namespace chassis {

std::string text(const Recompute& recompute) {
  if (recompute == Recompute::kNone) return "none";
  if (recompute == Recompute::kFull) return "full";
  return recompute.blocks == 1 ? "first block" : "first " + std::to_string(recompute.blocks) + " blocks";
}

std::vector<uint8_t> recomputed_units(const Program& program, const Recompute& recompute) {
  std::vector<uint8_t> again;
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i)
      again.push_back(chain.blocks.size() > 1 && static_cast<int64_t>(i) < recompute.blocks);
  return again;
}

void apply_recompute(const Program& program, const Recompute& recompute, ResolvedProgram& resolved) {
  if (resolved.purpose == Purpose::kTraining) resolved.recomputed = recomputed_units(program, recompute);
}

}  // namespace chassis
