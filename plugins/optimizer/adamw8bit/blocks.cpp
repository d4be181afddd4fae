// Blocks are decoded, stepped and encoded in registers and in 2 KiB of stack.
#include "blocks.hpp"

#include <algorithm>
#include <cstring>

#include "lanes.hpp"

namespace adamw8bit {
namespace {

using F = Lanes::F;
using I = Lanes::I;

constexpr int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;

// The nearest codes of values in [-1, 1].
template <bool kSigned>
[[gnu::always_inline]] inline I codes_of(F x, const CodeTable& table) {
  const I magnitude = kSigned ? Lanes::bit_and(Lanes::bits(x), Lanes::splat(kMagnitude)) : Lanes::bits(x);
  I cell = Lanes::largest(Lanes::subtract(Lanes::shifted_right(magnitude, table.shift), Lanes::splat(table.first)),
                          Lanes::splat(0));
  const I negative = kSigned ? Lanes::sign_mask(Lanes::bits(x)) : Lanes::splat(0);
  if (kSigned) cell = Lanes::add(cell, Lanes::bit_and(negative, Lanes::splat(table.last - table.first + 1)));
  const I entry = Lanes::gather(table.entries, cell);
  const I rest = Lanes::bit_and(magnitude, Lanes::splat((1 << table.shift) - 1));
  // All ones where the rest reaches the threshold.
  const I beyond =
      Lanes::sign_mask(Lanes::subtract(Lanes::subtract(Lanes::shifted_right(entry, 8), Lanes::splat(1)), rest));
  const I code = Lanes::bit_and(entry, Lanes::splat(255));
  // +1 where positive, -1 where negative.
  const I away = kSigned ? Lanes::bit_or(negative, Lanes::splat(1)) : Lanes::splat(1);
  return Lanes::add(code, Lanes::bit_and(beyond, away));
}

// A code whose sign differs from that of the value moves by one, as in the kernels of bitsandbytes; the code of zero
// counts as positive.
[[gnu::always_inline]] inline I with_sign_of(I code, F x) {
  const I negative = Lanes::sign_mask(Lanes::bits(x));
  const I code_negative = Lanes::sign_mask(Lanes::subtract(code, Lanes::splat(chassis::kDynamicSignedZero)));
  const I differ = Lanes::bit_xor(negative, code_negative);
  // A code moves up if x > 0; a negative zero moves it down.
  return Lanes::add(code, Lanes::bit_and(differ, Lanes::bit_or(negative, Lanes::splat(1))));
}

struct Constants {
  F beta1, one_minus_beta1, beta2, one_minus_beta2, eps, minus_step_size, decay, grad_scale;
  I smallest_square;
  explicit Constants(const Coefficients& k)
      : beta1(Lanes::splat(k.beta1)),
        one_minus_beta1(Lanes::splat(k.one_minus_beta1)),
        beta2(Lanes::splat(k.beta2)),
        one_minus_beta2(Lanes::splat(k.one_minus_beta2)),
        eps(Lanes::splat(k.eps)),
        minus_step_size(Lanes::splat(k.minus_step_size)),
        decay(Lanes::splat(k.decay)),
        grad_scale(Lanes::splat(k.grad_scale)),
        smallest_square(Lanes::splat(k.smallest_square)) {}
};

template <Order kOrder>
[[gnu::always_inline]] inline void step_block(float* p, const float* g, uint8_t* average, uint8_t* square,
                                              float& average_absmax, float& square_absmax, const Constants& k,
                                              const CodeTable& signed_code, const CodeTable& unsigned_code) {
  alignas(64) float ms[kBlock], vs[kBlock];
  const F m_scale = Lanes::splat(average_absmax), v_scale = Lanes::splat(square_absmax);
  I m_largest = Lanes::splat(0), v_largest = Lanes::splat(0);
  for (int64_t i = 0; i < kBlock; i += Lanes::kWidth) {
    const F grad = Lanes::multiply(Lanes::load(g + i), k.grad_scale);
    F m = Lanes::multiply(Lanes::gather(signed_code.values, Lanes::load_bytes(average + i)), m_scale);
    F v = Lanes::multiply(Lanes::gather(unsigned_code.values, Lanes::load_bytes(square + i)), v_scale);
    m = Lanes::add(Lanes::multiply(m, k.beta1), Lanes::multiply(k.one_minus_beta1, grad));
    v = Lanes::add(Lanes::multiply(v, k.beta2), Lanes::multiply(Lanes::multiply(k.one_minus_beta2, grad), grad));
    // If the gradient of an element or its square is not finite, its averages restart at 0 and it does not move.
    const I finite = Lanes::sign_mask(
        Lanes::subtract(Lanes::bit_and(Lanes::bits(v), Lanes::splat(kMagnitude)), Lanes::splat(kInfinity)));
    m = Lanes::value(Lanes::bit_and(Lanes::bits(m), finite));
    v = Lanes::value(Lanes::bit_and(Lanes::bits(v), finite));
    const F before = Lanes::load(p + i);
    const F update = Lanes::divide(Lanes::multiply(k.minus_step_size, m), Lanes::add(Lanes::root(v), k.eps));
    const F after = kOrder == Order::kTorch ? Lanes::add(Lanes::multiply(before, k.decay), update)
                                            : Lanes::multiply(Lanes::add(before, update), k.decay);
    Lanes::store(p + i, Lanes::value(Lanes::bit_or(Lanes::bit_and(finite, Lanes::bits(after)),
                                                   Lanes::and_not(finite, Lanes::bits(before)))));
    Lanes::store(ms + i, m);
    Lanes::store(vs + i, v);
    m_largest = Lanes::largest(m_largest, Lanes::bit_and(Lanes::bits(m), Lanes::splat(kMagnitude)));
    v_largest = Lanes::largest(v_largest, Lanes::bits(v));
  }
  average_absmax = std::bit_cast<float>(Lanes::largest_of(m_largest));
  square_absmax = std::bit_cast<float>(Lanes::largest_of(v_largest));
  const F m_divisor = Lanes::splat(average_absmax > 0 ? average_absmax : 1.0f);
  const F v_divisor = Lanes::splat(square_absmax > 0 ? square_absmax : 1.0f);
  for (int64_t i = 0; i < kBlock; i += Lanes::kWidth) {
    const F m = Lanes::load(ms + i);
    I code = codes_of<true>(Lanes::divide(m, m_divisor), signed_code);
    if (kOrder == Order::kBnb) code = with_sign_of(code, m);
    Lanes::store_bytes(average + i, code);
    const F v = Lanes::load(vs + i);
    const I above_zero = Lanes::sign_mask(Lanes::subtract(Lanes::splat(0), Lanes::bits(v)));
    const I code_of_square = codes_of<false>(Lanes::divide(v, v_divisor), unsigned_code);
    Lanes::store_bytes(square + i, Lanes::largest(code_of_square, Lanes::bit_and(above_zero, k.smallest_square)));
  }
}

template <Order kOrder>
void step_blocks_in(const Rows& rows, int64_t begin, int64_t end, const Coefficients& coefficients,
                    const CodeTable& signed_code, const CodeTable& unsigned_code) {
  const Constants k(coefficients);
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t block = at / kBlock, count = std::min(kBlock, end - at);
    float &average_absmax = rows.average_absmax[block], &square_absmax = rows.square_absmax[block];
    if (count == kBlock) {
      step_block<kOrder>(rows.param + at, rows.grad + at, rows.average + at, rows.square + at, average_absmax,
                         square_absmax, k, signed_code, unsigned_code);
      continue;
    }
    // The rest of the last block is filled with zeros, which have no effect on its elements.
    float p[kBlock] = {}, g[kBlock] = {};
    uint8_t average[kBlock], square[kBlock];
    std::memset(average, chassis::kDynamicSignedZero, sizeof average);
    std::memset(square, chassis::kDynamicUnsignedZero, sizeof square);
    std::copy_n(rows.param + at, count, p);
    std::copy_n(rows.grad + at, count, g);
    std::copy_n(rows.average + at, count, average);
    std::copy_n(rows.square + at, count, square);
    step_block<kOrder>(p, g, average, square, average_absmax, square_absmax, k, signed_code, unsigned_code);
    std::copy_n(p, count, rows.param + at);
    std::copy_n(average, count, rows.average + at);
    std::copy_n(square, count, rows.square + at);
  }
}

void step_blocks(const Rows& rows, int64_t begin, int64_t end, const Coefficients& k, Order order,
                 const CodeTable& signed_code, const CodeTable& unsigned_code) {
  if (order == Order::kTorch)
    step_blocks_in<Order::kTorch>(rows, begin, end, k, signed_code, unsigned_code);
  else
    step_blocks_in<Order::kBnb>(rows, begin, end, k, signed_code, unsigned_code);
}

void step_fp32(float* p, const float* g, float* m, float* v, int64_t count, const chassis::AdamWCoefficients& k) {
  chassis::adamw_update(p, g, m, v, count, k);
}

void step_fp32_bnb(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
                   int64_t count, const Coefficients& k) {
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * k.grad_scale;
    m[i] = m[i] * k.beta1 + k.one_minus_beta1 * grad;
    v[i] = v[i] * k.beta2 + k.one_minus_beta2 * grad * grad;
    p[i] = (p[i] + k.minus_step_size * m[i] / (std::sqrt(v[i]) + k.eps)) * k.decay;
  }
}

}  // namespace

const Loops& loops(chassis::ThisIsa) {
  static constexpr Loops kLoops = {step_blocks, step_fp32, step_fp32_bnb};
  return kLoops;
}

}  // namespace adamw8bit
