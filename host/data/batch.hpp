// What a training step consumes: rows of tokens as plain arrays; the trainer turns them into tensors.
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

// A micro-batch of B rows of T positions, with those fields that the model takes.
struct Batch {
  Batch() = default;
  // All positions are padding.
  Batch(int64_t num_rows, int64_t seq_len, int32_t pad_id, const std::vector<std::string>& field_names);

  // Throws an internal error, naming the field, if there is none.
  const BatchField& field(std::string_view name) const;
  std::span<const int32_t> values(std::string_view name) const { return field(name).values; }

  int64_t num_rows = 0;
  int64_t seq_len = 0;
  uint64_t num_tokens = 0;          // without padding
  uint64_t num_trained_tokens = 0;  // labels that are not masked
  std::map<std::string, BatchField, std::less<>> fields;
};

// All of them.
std::vector<std::string> all_batch_fields();

// One row of a batch, being filled; empty where the batch lacks the field.
struct BatchRow {
  BatchRow(Batch& batch, int64_t row);
  size_t seq_len;
  std::span<int32_t> input_ids, labels, positions, document_ids;
};

}  // namespace chassis
