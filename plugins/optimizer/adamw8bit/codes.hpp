// Tables that find the nearest code of a value in [-1, 1] with one lookup and one comparison.
#pragma once

#include <cstdint>
#include <vector>

#include "chassis/dynamic_code.hpp"

namespace adamw8bit {

// Values with the same sign, exponent and first bits of the mantissa are in one cell, and a cell has at most one
// threshold between two codes. An entry is code | threshold << 8: the code of a cell's smallest magnitude, and the
// value of the magnitude's remaining bits from which on the code is the next one away from zero.
struct CodeTable {
  const float* values = nullptr;     // of the 256 codes
  const int32_t* entries = nullptr;  // positive cells, then negative ones
  int32_t shift = 0;                 // remaining bits
  int32_t first = 0, last = 0;       // cells, before `first` is subtracted
};

class Codes {
 public:
  // `mantissa_bits` must be large enough that a cell has at most one threshold; else throws INTERNAL.
  Codes(const chassis::DynamicCode& code, bool is_signed, int mantissa_bits);
  Codes(const Codes&) = delete;
  Codes& operator=(const Codes&) = delete;

  const CodeTable& table() const { return table_; }

 private:
  const chassis::DynamicCode code_;
  std::vector<int32_t> entries_;
  CodeTable table_;
};

}  // namespace adamw8bit
