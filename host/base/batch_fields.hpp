// The fields that a batch can have, one row each. The data, recorded programs, the division of positions, generation,
// plans and tests take names, types, dims, padding and values from here, so that a new field is a row of this table.
// HostField (state/host_field.hpp) stores one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/tensor.h"

namespace chassis {

// A masked label; the same value as in PyTorch.
inline constexpr int32_t kIgnoreLabel = -100;

// The field with the ids of a teacher's likeliest tokens at each position, and its last dim.
inline constexpr char kTeacherIds[] = "teacher_ids";
inline constexpr char kTeacherDim[] = "teacher_top_k";

// The bytes that a document has for fields besides its tokens, by the name of the column.
using DocumentColumns = std::map<std::string, std::vector<std::byte>, std::less<>>;

// A part of a document in a row of a batch.
struct RowPiece {
  std::span<const int32_t> ids;
  std::span<const int32_t> targets = {};  // the token to be predicted at each position, or kIgnoreLabel; may be empty
  int32_t first_position = 0;
  int32_t document = 0;  // its number in the row
  // Those of the document if it begins here; NULL for its other parts, and if no field of the batch needs them.
  const DocumentColumns* columns = nullptr;

  // Empty if there is no such column.
  std::span<const std::byte> column(std::string_view name) const;
};

struct BatchFieldSpec {
  std::string_view name;
  uint32_t dtype;                          // CHASSIS_DTYPE_F32 or I32
  std::span<const std::string_view> dims;  // those of a program, by name
  std::optional<int32_t> padding;          // the value after the end of a row; none: the tokenizer's padding id
  bool in_generation;                      // false: what is to be predicted, and what one text by itself does not need
  // Writes the entries of a piece, which `out` has room for.
  void (*write)(const RowPiece& piece, std::span<std::byte> out);
  // For FieldEntries::kAppended: how many entries of that many bytes the piece has.
  size_t (*num_entries)(const RowPiece& piece, size_t entry_bytes) = nullptr;
};

// The dims that number the entries of a field.
enum class FieldEntries {
  kPositions,  // [B, T, …]
  kRows,       // [B, …]
  kAppended,   // [patches, …]: pieces append entries, and the first dim is bounded
};
FieldEntries entries_of(const BatchFieldSpec& spec);

// A writer for the table, from one that takes the values of the field's type.
template <typename T, void (*kWrite)(const RowPiece& piece, std::span<T> out)>
void write_as(const RowPiece& piece, std::span<std::byte> out) {
  kWrite(piece, {reinterpret_cast<T*>(out.data()), out.size() / sizeof(T)});
}

std::span<const BatchFieldSpec> batch_fields();
// NULL if no batch has that field.
const BatchFieldSpec* find_batch_field(std::string_view name);

}  // namespace chassis
