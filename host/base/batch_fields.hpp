// The fields that a batch can have, one row each. The data, recorded programs, the division of positions, generation,
// plans and tests take names, types, padding and values from here, so that a new field is a row of this table.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "chassis/kind/model.h"
#include "chassis/tensor.h"

namespace chassis {

// A masked label; the same value as in PyTorch.
inline constexpr int32_t kIgnoreLabel = -100;

// A part of a document in a row of a batch.
struct RowPiece {
  std::span<const int32_t> ids;
  std::span<const int32_t> targets = {};  // the token to be predicted at each position, or kIgnoreLabel; may be empty
  int32_t first_position = 0;
  int32_t document = 0;  // its number in the row
};

struct BatchFieldSpec {
  std::string_view name;
  uint32_t dtype;                  // CHASSIS_DTYPE_…
  std::array<uint32_t, 2> dims;    // CHASSIS_DIM_…
  std::optional<int32_t> padding;  // the value after the end of a row; none: the tokenizer's padding id
  bool in_generation;              // false: what is to be predicted, and what one text by itself does not need
  // Writes the values for the positions of a piece; `out` has one element per id.
  void (*write)(const RowPiece& piece, std::span<int32_t> out);
};

std::span<const BatchFieldSpec> batch_fields();
// NULL if no batch has that field.
const BatchFieldSpec* find_batch_field(std::string_view name);

}  // namespace chassis
