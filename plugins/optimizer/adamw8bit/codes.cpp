// Fills the tables by means of the search that defines the codes.
#include "codes.hpp"

#include <bit>

#include "chassis/guard.hpp"

namespace adamw8bit {
namespace {

using namespace chassis;

constexpr uint32_t kOne = 0x3f800000;  // the bits of 1.0

}  // namespace

Codes::Codes(const DynamicCode& code, bool is_signed, int mantissa_bits) : code_(code) {
  const int shift = 23 - mantissa_bits;
  const uint32_t size = uint32_t{1} << shift;
  const auto code_of = [&](uint32_t magnitude, bool negative) {
    const float x = std::bit_cast<float>(magnitude);
    return int32_t{nearest_dynamic_code(code_, negative ? -x : x)};
  };
  // The first cell holds no threshold, and neither do the magnitudes below it.
  uint32_t first = kOne >> shift;
  for (const bool negative : {false, true}) {
    if (negative && !is_signed) break;
    while (code_of(first * size, negative) != code_of(0, negative)) --first;
  }
  --first;
  for (const bool negative : {false, true}) {
    if (negative && !is_signed) break;
    const int32_t away = negative ? -1 : 1;
    for (uint32_t cell = first; cell <= kOne >> shift; ++cell) {
      const int32_t base = code_of(cell * size, negative);
      const uint32_t end = cell == kOne >> shift ? 1 : size;  // nothing is above 1
      uint32_t threshold = size;                              // none
      if (code_of(cell * size + end - 1, negative) != base) {
        uint32_t low = 0, high = end - 1;  // the codes at low and high differ
        while (high - low > 1) {
          const uint32_t middle = low + (high - low) / 2;
          (code_of(cell * size + middle, negative) == base ? low : high) = middle;
        }
        threshold = high;
        if (code_of(cell * size + end - 1, negative) != base + away)
          throw Failure(CHASSIS_INTERNAL, "a cell of the 8-bit code has two thresholds");
      }
      entries_.push_back(base | static_cast<int32_t>(threshold) << 8);
    }
  }
  table_ = {code_.data(), entries_.data(), shift, static_cast<int32_t>(first), static_cast<int32_t>(kOne >> shift)};
}

}  // namespace adamw8bit
