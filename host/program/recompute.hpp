// The recompute pass: which units run their forward again before their backward, so that less is kept in between.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "host/program/program.hpp"
#include "host/program/resolve.hpp"

namespace chassis {

// Of the first blocks of each repeated chain only the inputs are kept, and their forward runs again before their
// backward (Chen et al. 2016).
struct Recompute {
  int64_t blocks = 0;  // of a chain, at most

  static const Recompute kNone;  // keep what backward reads
  static const Recompute kFull;  // all blocks of all repeated chains
  friend bool operator==(const Recompute&, const Recompute&) = default;
};
inline constexpr Recompute Recompute::kNone{0};
inline constexpr Recompute Recompute::kFull{std::numeric_limits<int64_t>::max()};
// "none", "full", "first 5 blocks".
std::string text(const Recompute& recompute);

// By unit, whether its forward runs again.
std::vector<uint8_t> recomputed_units(const Program& program, const Recompute& recompute);
// The pass: marks the units of a program that is resolved for training; others are left alone.
void apply_recompute(const Program& program, const Recompute& recompute, ResolvedProgram& resolved);

}  // namespace chassis
