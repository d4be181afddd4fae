// Philox4x32-10 (Salmon et al. 2011) over many counters at once, and the products with its mask.
#include "dropout_loops.hpp"

#include "chassis/bf16.hpp"

namespace aten {
namespace {

void draw(uint64_t key, uint32_t first, uint32_t time, uint64_t row, uint32_t* words) {
  uint32_t c0[kDrawnCounters], c1[kDrawnCounters], c2[kDrawnCounters], c3[kDrawnCounters];
  for (uint32_t i = 0; i < kDrawnCounters; ++i) {
    c0[i] = first + i;
    c1[i] = time;
    c2[i] = static_cast<uint32_t>(row);
    c3[i] = static_cast<uint32_t>(row >> 32);
  }
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kDrawnCounters; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * c0[i], b = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(b);
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(a);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (int i = 0; i < kDrawnCounters; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

template <typename T>
void apply(const T* x, const uint32_t* words, uint32_t threshold, double scale, const T* carry, T* y, int64_t n) {
  const T factor = static_cast<T>(scale);
  if (carry)
    for (int64_t i = 0; i < n; ++i) y[i] = words[i] >= threshold ? carry[i] + x[i] * factor : carry[i];
  else
    for (int64_t i = 0; i < n; ++i) y[i] = words[i] >= threshold ? x[i] * factor : T{0};
}

void apply_bf16(const uint16_t* x, const uint32_t* words, uint32_t threshold, double scale, const uint16_t* carry,
                uint16_t* y, int64_t n) {
  const auto factor = static_cast<float>(scale);
  if (carry)
    for (int64_t i = 0; i < n; ++i)
      y[i] = words[i] >= threshold ? chassis::to_bf16(chassis::from_bf16(carry[i]) + chassis::from_bf16(x[i]) * factor)
                                   : carry[i];
  else
    for (int64_t i = 0; i < n; ++i)
      y[i] = words[i] >= threshold ? chassis::to_bf16(chassis::from_bf16(x[i]) * factor) : uint16_t{0};
}

}  // namespace

const DropoutLoops& dropout_loops(chassis::ThisIsa) {
  static constexpr DropoutLoops table = {draw, apply<float>, apply<double>, apply_bf16};
  return table;
}

}  // namespace aten
