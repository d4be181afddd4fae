// How much of a block backward finds kept, and how much it computes again.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <string>

namespace chassis {

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
};
inline constexpr Recompute Recompute::kNone{0, 0};
inline constexpr Recompute Recompute::kSelective{0, kAll};
inline constexpr Recompute Recompute::kFull{kAll, 0};

std::string text(BlockRecompute mode);  // "selective"
// "none", "selective", "full in the first block, selective in the others".
std::string text(const Recompute& recompute);

}  // namespace chassis
