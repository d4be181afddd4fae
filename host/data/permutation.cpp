// A Feistel network: each round changes one half of the bits by a keyed mix of the other half.
#include "host/data/permutation.hpp"

#include "host/base/error.hpp"

namespace chassis {

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t stream, uint64_t epoch) : size_(size) {
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
  CHASSIS_CHECK(size_ <= uint64_t{1} << (2 * half_bits_), "too many documents to shuffle");
  uint64_t key = mix64(mix64(mix64(seed) ^ stream) ^ epoch);
  for (uint64_t& round_key : keys_) round_key = key = mix64(key);
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix64(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t position) const {
  CHASSIS_CHECK(position < size_, "position out of range");
  do {
    position = encrypt(position);
  } while (position >= size_);
  return position;
}

}  // namespace chassis
