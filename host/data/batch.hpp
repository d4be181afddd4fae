// The input of a training step: rows of tokens as plain arrays, which the trainer turns into tensors.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

struct BatchField {
  std::vector<int64_t> shape;
  std::vector<int32_t> values;  // row-major
};

// The fields that a batch can have, all [B, T] i32:
//   input_ids
//   labels        the target of each position, already shifted; -100 is masked, such as the last token of a document
//   positions     from 0 in each piece of a document
//   document_ids  from 0 in each row, one per piece of a document: a token attends only to its own; -1 is padding
inline constexpr std::array<std::string_view, 4> kBatchFields = {"input_ids", "labels", "positions", "document_ids"};

// A micro-batch of B rows of T positions, with the fields that the model takes. T may differ between micro-batches.
struct Batch {
  Batch() = default;
  // All positions are padding.
  Batch(int64_t num_rows, int64_t seq_len, int32_t pad_id, const std::vector<std::string>& field_names);

  // Throws an internal error that names the field if the batch does not have it.
  const BatchField& field(std::string_view name) const;
  std::span<const int32_t> values(std::string_view name) const { return field(name).values; }
  // Cuts every row to its first `length` positions.
  void shorten(int64_t length);

  int64_t num_rows = 0;
  int64_t seq_len = 0;
  uint64_t num_tokens = 0;          // without padding
  uint64_t num_trained_tokens = 0;  // labels that are not masked
  std::map<std::string, BatchField, std::less<>> fields;
};

// The names in kBatchFields.
std::vector<std::string> all_batch_fields();

// One row of a batch, to be filled. A span is empty if the batch does not have the field.
struct BatchRow {
  BatchRow(Batch& batch, int64_t row);
  size_t seq_len;
  std::span<int32_t> input_ids, labels, positions, document_ids;
};

}  // namespace chassis
