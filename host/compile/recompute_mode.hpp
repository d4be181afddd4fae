// How much of a block backward finds kept, and how much it computes again: the modes of recompute.mode, by block.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace chassis {

// From the one that keeps most to the one that keeps least.
enum class BlockRecompute {
  kNone,       // all that backward reads is kept
  kSelective,  // cheap nodes run again (selective.hpp; Korthikanti et al. 2022)
  kFull,       // only the inputs are kept, and forward runs again (Chen et al. 2016)
};

// In each chain that repeats blocks, the first `full` are recomputed fully, and the next `selective` selectively.
struct Recompute {
  int64_t full = 0;
  int64_t selective = 0;

  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  static const Recompute kNone, kSelective, kFull;
  friend auto operator<=>(const Recompute&, const Recompute&) = default;

  // The mode of the block at that index of a chain.
  BlockRecompute at(int64_t index) const;
  // The strongest mode of any block.
  BlockRecompute strongest() const;
  // The same in the first blocks of each chain; none in the others.
  Recompute in_first(int64_t blocks) const;
};
inline constexpr Recompute Recompute::kNone{0, 0};
inline constexpr Recompute Recompute::kSelective{0, kAll};
inline constexpr Recompute Recompute::kFull{kAll, 0};

// All code that plans, proposes or reports modes reads them here.
struct RecomputeModeSpec {
  BlockRecompute mode;
  std::string_view name;         // as in recompute.mode
  Recompute everywhere;          // the mode in all blocks
  bool keeps_frame;              // forward keeps values for backward; otherwise only the inputs of the block
  std::string_view nodes_again;  // those that backward runs again if forward keeps the others, for reports
};
inline constexpr std::array<RecomputeModeSpec, 3> kRecomputeModes = {{
    {BlockRecompute::kNone, "none", Recompute::kNone, true, ""},
    {BlockRecompute::kSelective, "selective", Recompute::kSelective, true, "cheap nodes"},
    {BlockRecompute::kFull, "full", Recompute::kFull, false, ""},
}};
const RecomputeModeSpec& spec_of(BlockRecompute mode);

std::string text(BlockRecompute mode);  // "selective"
// "none", "selective", "full in the first block, selective in the others".
std::string text(const Recompute& recompute);

}  // namespace chassis
