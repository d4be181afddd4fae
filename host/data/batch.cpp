// Creates the fields of a batch, filled with padding.
#include "host/data/batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "host/base/batch_fields.hpp"
#include "host/base/error.hpp"

namespace chassis {

std::vector<std::string> all_batch_fields() {
  std::vector<std::string> names;
  for (const BatchFieldSpec& field : batch_fields())
    if (field.dims.size() <= 2 && entries_of(field) != FieldEntries::kAppended) names.emplace_back(field.name);
  return names;
}

Batch::Batch(int64_t rows, int64_t length, int32_t pad_id, const std::vector<std::string>& field_names, NamedSizes dims)
    : num_rows(rows), seq_len(length) {
  dims["B"] = rows;
  dims["T"] = length;
  for (const std::string& name : field_names) {
    const BatchFieldSpec* spec = find_batch_field(name);
    CHASSIS_CHECK(spec != nullptr, name);
    fields.insert_or_assign(name, HostField(*spec, dims, pad_id));
  }
}

const HostField& Batch::field(std::string_view name) const {
  const auto found = fields.find(name);
  if (found == fields.end()) throw internal_error(fmt::format("the batch has no field \"{}\"", name));
  return found->second;
}

void Batch::shorten(int64_t length) {
  CHASSIS_CHECK(length > 0 && length <= seq_len, "the length of a shortened batch");
  for (auto& [name, field] : fields) field.shorten(length);
  seq_len = length;
}

bool BatchRow::needs_columns() const {
  return std::ranges::any_of(batch_.fields,
                             [](const auto& named) { return named.second.entries() != FieldEntries::kPositions; });
}

void BatchRow::add_unit(DocumentUnit unit, size_t column) {
  const uint64_t number = batch_.sequences.empty() ? 0 : batch_.sequences.back().unit + 1;
  auto begin = static_cast<int64_t>(column);
  unit.references.resize(unit.sequences.size());
  for (size_t s = 0; s < unit.sequences.size(); ++s) {
    const int64_t length = unit.sequences[s].length;
    write_teacher(unit.sequences[s].teacher, static_cast<size_t>(begin), static_cast<size_t>(length));
    batch_.sequences.push_back({.row = row_,
                                .begin = begin,
                                .unit = number,
                                .document = unit.document,
                                .facts = std::move(unit.sequences[s]),
                                .reference = std::move(unit.references[s])});
    begin += length;
  }
}

void BatchRow::write_teacher(const TeacherFacts& teacher, size_t begin, size_t length) {
  const auto found = batch_.fields.find(kTeacherIds);
  if (found == batch_.fields.end() || teacher.counts.empty()) return;
  const size_t first = static_cast<size_t>(row_) * seq_len() + begin;
  const std::span<const int32_t> labels = batch_.values("labels").subspan(first, length);
  const std::span<int32_t> out = found->second.writable<int32_t>();
  const auto width = static_cast<size_t>(found->second.shape().back());
  auto id = teacher.ids.begin();
  size_t token = 0;
  for (size_t t = 0; t < length; ++t) {
    if (labels[t] == kIgnoreLabel) continue;
    CHASSIS_CHECK(token < teacher.counts.size() && teacher.counts[token] <= width, "the entries of a teacher");
    const auto count = static_cast<ptrdiff_t>(teacher.counts[token++]);
    std::copy(id, id + count, out.begin() + static_cast<ptrdiff_t>((first + t) * width));
    id += count;
  }
  CHASSIS_CHECK(token == teacher.counts.size(), "a teacher's entries for each token of an answer");
}

void BatchRow::write(const RowPiece& piece, size_t column) {
  for (auto& [name, field] : batch_.fields) field.write(piece, row_, static_cast<int64_t>(column));
}

}  // namespace chassis
