// The sums of a row that router_stats makes and load_balance reads; chassis/op.h has their meaning.
#pragma once

#include <cstdint>

#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

// Places in [2E+1]: the counts of the E experts, the E sums of their softmaxes, and the sum of the squares.
struct RouterSumsPlaces {
  int64_t num_experts = 0;

  static constexpr RouterSumsPlaces in(int64_t size) { return {size / 2}; }
  constexpr int64_t size() const { return 2 * num_experts + 1; }
  constexpr int64_t counts() const { return 0; }
  constexpr int64_t probabilities() const { return num_experts; }
  constexpr int64_t squares() const { return 2 * num_experts; }
};

CHASSIS_SDK_END
