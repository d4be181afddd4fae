// The sizes, in one micro-batch, of the dims that are not fixed. Calls and plans take them together.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "host/graph/program.hpp"

namespace chassis {

struct DimSizes {
  int64_t batch = 0, time = 0;                          // before any split
  std::vector<std::pair<DimId, int64_t>> bounded = {};  // in the order of the program's dims

  // Those of plans: bounded dims have their maximum.
  static DimSizes largest(const Program& program, int64_t batch, int64_t time);
  int64_t size_of(const Program& program, DimId dim) const;
  // `dim` must not be fixed. Throws a config error if a bounded dim gets more than its maximum.
  void set(const Program& program, DimId dim, int64_t size);
  bool operator==(const DimSizes&) const = default;
};

}  // namespace chassis
