// The text and the order of the choices, and which units they apply to.
#include "host/program/recompute.hpp"

#include "host/program/program.hpp"
#include "host/program/resolve.hpp"

namespace chassis {
namespace {

std::string text_of_first(BlockRecompute mode, int64_t blocks) {
  return text(mode) + " in the first " + (blocks == 1 ? "block" : std::to_string(blocks) + " blocks");
}

}  // namespace

BlockRecompute Recompute::at(int64_t index) const {
  if (index < full) return BlockRecompute::kFull;
  return index - full < selective ? BlockRecompute::kSelective : BlockRecompute::kNone;
}

BlockRecompute Recompute::strongest() const {
  if (full > 0) return BlockRecompute::kFull;
  return selective > 0 ? BlockRecompute::kSelective : BlockRecompute::kNone;
}

std::string text(BlockRecompute mode) {
  switch (mode) {
    case BlockRecompute::kNone:
      return "none";
    case BlockRecompute::kSelective:
      return "selective";
    case BlockRecompute::kFull:
      return "full";
  }
  return "";
}

std::string text(const Recompute& recompute) {
  const BlockRecompute strongest = recompute.strongest();
  if (strongest == BlockRecompute::kNone || recompute.full == Recompute::kAll || recompute == Recompute::kSelective)
    return text(strongest);
  if (recompute.full == 0) return text_of_first(strongest, recompute.selective);
  const std::string first = text_of_first(strongest, recompute.full);
  return recompute.selective == 0 ? first : first + ", selective in the others";
}

Recompute recompute_of_cost(int64_t cost, int64_t num_blocks) {
  if (cost < num_blocks) return {0, cost};
  const int64_t full = cost - num_blocks;
  return full < num_blocks ? Recompute{full, Recompute::kAll} : Recompute::kFull;
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
