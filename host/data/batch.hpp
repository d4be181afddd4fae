// The input of a training step: rows of tokens as plain arrays, which the trainer turns into tensors.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/data/sequences.hpp"
#include "host/state/host_field.hpp"

namespace chassis {

// A micro-batch of B rows of T positions, with those of batch_fields() that the model takes. T may differ between
// micro-batches.
struct Batch {
  Batch() = default;
  // All positions are padding. `dims`: the sizes of the other dims of the fields.
  Batch(int64_t num_rows, int64_t seq_len, int32_t pad_id, const std::vector<std::string>& field_names,
        NamedSizes dims = {});

  // Throws an internal error that names the field if the batch does not have it.
  const HostField& field(std::string_view name) const;
  std::span<const int32_t> values(std::string_view name) const { return field(name).values<int32_t>(); }
  // Cuts every row to its first `length` positions.
  void shorten(int64_t length);

  int64_t num_rows = 0;
  int64_t seq_len = 0;
  uint64_t num_tokens = 0;          // without padding
  uint64_t num_trained_tokens = 0;  // labels that are not masked
  std::map<std::string, HostField, std::less<>> fields;
  std::vector<BatchSequence> sequences;  // in the order of rows and positions; empty unless an objective needs them
};

// The names of those batch_fields() that have no dims but B and T.
std::vector<std::string> all_batch_fields();

// One row of a batch, to be filled. The batch must outlive it.
class BatchRow {
 public:
  BatchRow(Batch& batch, int64_t row) : batch_(batch), row_(row) {}
  size_t seq_len() const { return static_cast<size_t>(batch_.seq_len); }
  // True if a field has other values than one for each position, which come from columns of documents.
  bool needs_columns() const;
  // Writes all fields of the batch for a piece of a document, from `column` on.
  void write(const RowPiece& piece, size_t column);
  // Adds the sequences of a unit, which fill the row from `column` on. Units come in the order of rows and positions.
  // Writes the entries of teachers, if the batch has a field for them, by the labels of the row.
  void add_unit(DocumentUnit unit, size_t column);

 private:
  void write_teacher(const TeacherFacts& teacher, size_t begin, size_t length);

  Batch& batch_;
  int64_t row_;
};

}  // namespace chassis
