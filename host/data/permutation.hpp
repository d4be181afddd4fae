// A shuffled order that is computed, not stored: every position takes the same time, so a cursor is just a number.
#pragma once

#include <array>
#include <cstdint>

namespace chassis {

// A bijection of [0, size) chosen by (seed, stream, epoch). The same numbers give the same order in every version.
// A balanced Feistel network over the next even power of two, repeated until the value is below size: Black and
// Rogaway, "Ciphers with Arbitrary Finite Domains" (2002).
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint64_t stream, uint64_t epoch);
  uint64_t operator()(uint64_t position) const;

 private:
  uint64_t encrypt(uint64_t value) const;
  static constexpr int kRounds = 6;
  uint64_t size_;
  int half_bits_ = 1;
  std::array<uint64_t, kRounds> keys_;
};

// SplitMix64's finalizer: spreads every input bit over the output.
constexpr uint64_t mix64(uint64_t value) {
  value += 0x9E3779B97F4A7C15u;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace chassis
