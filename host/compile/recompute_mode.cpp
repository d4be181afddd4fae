// The text of the choices, and what they are for one block.
#include "host/compile/recompute_mode.hpp"

#include <algorithm>
#include <cstddef>

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

Recompute Recompute::in_first(int64_t blocks) const {
  const int64_t first = std::min(full, blocks);
  return {first, std::min(selective, blocks - first)};
}

const RecomputeModeSpec& spec_of(BlockRecompute mode) {
  const auto in_order = [] {
    for (size_t i = 0; i < kRecomputeModes.size(); ++i)
      if (kRecomputeModes[i].mode != static_cast<BlockRecompute>(i)) return false;
    return true;
  };
  static_assert(in_order());
  return kRecomputeModes[static_cast<size_t>(mode)];
}

std::string text(BlockRecompute mode) { return std::string(spec_of(mode).name); }

std::string text(const Recompute& recompute) {
  const BlockRecompute strongest = recompute.strongest();
  if (strongest == BlockRecompute::kNone || recompute.full == Recompute::kAll || recompute == Recompute::kSelective)
    return text(strongest);
  if (recompute.full == 0) return text_of_first(strongest, recompute.selective);
  const std::string first = text_of_first(strongest, recompute.full);
  return recompute.selective == 0 ? first : first + ", selective in the others";
}

}  // namespace chassis
