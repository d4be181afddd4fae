// Grains of parallel loops: a thread with less work than this takes longer to start than to compute.
#pragma once

#include <algorithm>
#include <cstdint>

namespace interval {

// Tasks that each compute products of so many FLOPs.
inline int64_t product_grain(int64_t flops) {
  constexpr int64_t kFlopsOfThread = 1 << 20;
  return std::max<int64_t>(1, kFlopsOfThread / std::max<int64_t>(1, flops));
}

// Tasks that each copy so many elements.
inline int64_t copy_grain(int64_t elements) {
  constexpr int64_t kElementsOfThread = 1 << 14;
  return std::max<int64_t>(1, kElementsOfThread / std::max<int64_t>(1, elements));
}

}  // namespace interval
