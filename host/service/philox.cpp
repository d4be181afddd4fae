// Compiled with -ffp-contract=off and uses no function of libm but sqrt, for the same bits on every machine.
#include "host/service/philox.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace chassis {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr uint32_t kUniformDomain = 0, kNormalDomain = 1;
constexpr int kCounters = 64;  // computed together, as a structure of arrays
constexpr int kCounterBlockElements = kCounters * 4;

struct CounterBlock {
  uint32_t word[4][kCounters];
};

void fill(uint64_t key, uint64_t first_counter, uint32_t domain, CounterBlock& out) {
  uint32_t c0[kCounters], c1[kCounters], c2[kCounters], c3[kCounters];
  for (int i = 0; i < kCounters; ++i) {
    const uint64_t counter = first_counter + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(counter);
    c1[i] = static_cast<uint32_t>(counter >> 32);
    c2[i] = domain;
    c3[i] = 0;
  }
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kCounters; ++i) {
      const uint64_t p0 = static_cast<uint64_t>(kMultiplier0) * c0[i];
      const uint64_t p1 = static_cast<uint64_t>(kMultiplier1) * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  std::memcpy(out.word[0], c0, sizeof c0);
  std::memcpy(out.word[1], c1, sizeof c1);
  std::memcpy(out.word[2], c2, sizeof c2);
  std::memcpy(out.word[3], c3, sizeof c3);
}

float uniform24(uint32_t word) { return static_cast<float>(static_cast<int32_t>(word >> 8)) * 0x1p-24f; }

// ln u for u in [2^-24, 1], by the polynomial of Cephes' logf.
float log_of(float u) {
  int32_t bits;
  std::memcpy(&bits, &u, sizeof bits);
  int32_t exponent = (bits >> 23) - 126;  // u = m · 2^exponent, m in [0.5, 1)
  const int32_t mantissa = (bits & 0x007fffff) | 0x3f000000;
  float m;
  std::memcpy(&m, &mantissa, sizeof m);
  const int32_t low = m < 0.707106781186547524f ? 1 : 0;
  exponent -= low;
  const float x = m + (low ? m : 0.0f) - 1.0f;
  const float x2 = x * x;
  float p = 7.0376836292e-2f;
  p = p * x - 1.1514610310e-1f;
  p = p * x + 1.1676998740e-1f;
  p = p * x - 1.2420140846e-1f;
  p = p * x + 1.4249322787e-1f;
  p = p * x - 1.6668057665e-1f;
  p = p * x + 2.0000714765e-1f;
  p = p * x - 2.4999993993e-1f;
  p = p * x + 3.3333331174e-1f;
  const float e = static_cast<float>(exponent);
  float y = p * x * x2;
  y = y + e * -2.12194440e-4f;
  y = y - 0.5f * x2;
  return x + y + e * 0.693359375f;
}

// sin and cos of 2π u for u in [0, 1): reduced to the nearest quarter turn, then Cephes' polynomials on [-π/4, π/4].
void sincos_turn(float u, float& sine, float& cosine) {
  const int32_t quarter = static_cast<int32_t>(u * 4.0f + 0.5f);
  const float x = (u - static_cast<float>(quarter) * 0.25f) * 6.283185307179586f;
  const float x2 = x * x;
  float s = -1.9515295891e-4f;
  s = s * x2 + 8.3321608736e-3f;
  s = s * x2 - 1.6666654611e-1f;
  s = s * x2 * x + x;
  float c = 2.443315711809948e-5f;
  c = c * x2 - 1.388731625493765e-3f;
  c = c * x2 + 4.166664568298827e-2f;
  c = c * x2 * x2 - 0.5f * x2 + 1.0f;
  const bool odd = quarter & 1;
  const float s_turned = odd ? c : s, c_turned = odd ? s : c;
  sine = quarter & 2 ? -s_turned : s_turned;
  cosine = (quarter + 1) & 2 ? -c_turned : c_turned;
}

void uniform_block(uint64_t key, uint64_t first_counter, float* out) {
  CounterBlock block;
  fill(key, first_counter, kUniformDomain, block);
  for (int i = 0; i < kCounters; ++i)
    for (int lane = 0; lane < 4; ++lane) out[4 * i + lane] = uniform24(block.word[lane][i]);
}

void normal_block(uint64_t key, uint64_t first_counter, float* out) {
  CounterBlock block;
  fill(key, first_counter, kNormalDomain, block);
  float z[4][kCounters];
  for (int pair = 0; pair < 4; pair += 2)
    for (int i = 0; i < kCounters; ++i) {
      const float u = uniform24(block.word[pair][i]) + 0x1p-24f;  // (0, 1]
      const float radius = std::sqrt(-2.0f * log_of(u));
      float sine, cosine;
      sincos_turn(uniform24(block.word[pair + 1][i]), sine, cosine);
      z[pair][i] = radius * cosine;
      z[pair + 1][i] = radius * sine;
    }
  for (int i = 0; i < kCounters; ++i)
    for (int lane = 0; lane < 4; ++lane) out[4 * i + lane] = z[lane][i];
}

template <typename MakeBlock>
void in_blocks(uint64_t key, uint64_t begin, uint64_t count, float* out, MakeBlock make_block) {
  while (count > 0) {
    const uint64_t skip = begin % 4;
    const uint64_t taken = std::min<uint64_t>(count, kCounterBlockElements - skip);
    if (skip == 0 && taken == kCounterBlockElements) {
      make_block(key, begin / 4, out);
    } else {
      float whole[kCounterBlockElements];
      make_block(key, begin / 4, whole);
      std::memcpy(out, whole + skip, taken * sizeof(float));
    }
    begin += taken;
    out += taken;
    count -= taken;
  }
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMultiplier0) * counter[0];
    const uint64_t p1 = static_cast<uint64_t>(kMultiplier1) * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

void philox_uniform(uint64_t key, uint64_t begin, uint64_t count, float* out) {
  in_blocks(key, begin, count, out, uniform_block);
}

void philox_normal(uint64_t key, uint64_t begin, uint64_t count, float* out) {
  in_blocks(key, begin, count, out, normal_block);
}

}  // namespace chassis
