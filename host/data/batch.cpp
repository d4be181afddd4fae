// Creates the fields of a batch, filled with padding.
#include "host/data/batch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/base/error.hpp"
#include "host/data/document.hpp"

namespace chassis {

std::vector<std::string> all_batch_fields() { return {kBatchFields.begin(), kBatchFields.end()}; }

Batch::Batch(int64_t rows, int64_t length, int32_t pad_id, const std::vector<std::string>& field_names)
    : num_rows(rows), seq_len(length) {
  const std::map<std::string_view, int32_t> padding = {
      {"input_ids", pad_id}, {"labels", kIgnoreLabel}, {"positions", 0}, {"document_ids", -1}};
  for (const std::string& name : field_names) {
    const auto value = padding.find(name);
    CHASSIS_CHECK(value != padding.end(), name);
    fields[name] = {{rows, length}, std::vector<int32_t>(static_cast<size_t>(rows * length), value->second)};
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

BatchRow::BatchRow(Batch& batch, int64_t row) : seq_len(static_cast<size_t>(batch.seq_len)) {
  auto row_of = [&](const char* name) -> std::span<int32_t> {
    const auto field = batch.fields.find(name);
    if (field == batch.fields.end()) return {};
    return std::span(field->second.values)
        .subspan(static_cast<size_t>(row * batch.seq_len), static_cast<size_t>(batch.seq_len));
  };
  input_ids = row_of("input_ids");
  labels = row_of("labels");
  positions = row_of("positions");
  document_ids = row_of("document_ids");
}

}  // namespace chassis
