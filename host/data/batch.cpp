// Fields of a batch.
#include "host/data/batch.hpp"

#include <fmt/format.h>

#include "host/base/error.hpp"
#include "host/data/document_reader.hpp"

namespace chassis {

Batch::Batch(int64_t rows, int64_t length, int32_t pad_id) : num_rows(rows), seq_len(length) {
  auto add = [&](const char* name, int32_t value) {
    fields[name] = {{rows, length}, std::vector<int32_t>(static_cast<size_t>(rows * length), value)};
  };
  add("input_ids", pad_id);
  add("labels", kIgnoreLabel);
  add("positions", 0);
  add("document_ids", -1);
}

const BatchField& Batch::field(std::string_view name) const {
  const auto found = fields.find(name);
  if (found == fields.end()) throw internal_error(fmt::format("the batch has no field \"{}\"", name));
  return found->second;
}

BatchRow::BatchRow(Batch& batch, int64_t row) {
  auto of = [&](const char* name) {
    return std::span(batch.fields.at(name).values)
        .subspan(static_cast<size_t>(row * batch.seq_len), static_cast<size_t>(batch.seq_len));
  };
  input_ids = of("input_ids");
  labels = of("labels");
  positions = of("positions");
  document_ids = of("document_ids");
}

}  // namespace chassis
