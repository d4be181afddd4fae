// Creates the fields of a batch, filled with padding.
#include "host/data/batch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/base/error.hpp"

namespace chassis {

std::vector<std::string> all_batch_fields() {
  std::vector<std::string> names;
  for (const BatchFieldSpec& field : batch_fields()) names.emplace_back(field.name);
  return names;
}

Batch::Batch(int64_t rows, int64_t length, int32_t pad_id, const std::vector<std::string>& field_names)
    : num_rows(rows), seq_len(length) {
  for (const std::string& name : field_names) {
    const BatchFieldSpec* spec = find_batch_field(name);
    CHASSIS_CHECK(spec != nullptr, name);
    fields[name] = {{rows, length},
                    std::vector<int32_t>(static_cast<size_t>(rows * length), spec->padding.value_or(pad_id))};
  }
}

const BatchField& Batch::field(std::string_view name) const {
  const auto found = fields.find(name);
  if (found == fields.end()) throw internal_error(fmt::format("the batch has no field \"{}\"", name));
  return found->second;
}

void Batch::shorten(int64_t length) {
  CHASSIS_CHECK(length > 0 && length <= seq_len, "the length of a shortened batch");
  for (auto& [name, field] : fields) {
    for (int64_t row = 1; row < num_rows && length < seq_len; ++row)
      std::copy_n(field.values.begin() + row * seq_len, length, field.values.begin() + row * length);
    field.values.resize(static_cast<size_t>(num_rows * length));
    field.shape[1] = length;
  }
  seq_len = length;
}

void BatchRow::write(const RowPiece& piece, size_t column) {
  const size_t begin = static_cast<size_t>(row_) * seq_len() + column;
  for (auto& [name, field] : batch_.fields)
    find_batch_field(name)->write(piece, std::span(field.values).subspan(begin, piece.ids.size()));
}

}  // namespace chassis
