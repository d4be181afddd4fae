#include "host/base/batch_fields.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace chassis {
namespace {

constexpr std::string_view kTokens[] = {"B", "T"};
constexpr std::string_view kEntries[] = {"B", "T", kTeacherDim};

void write_ids(const RowPiece& piece, std::span<int32_t> out) {
  std::copy(piece.ids.begin(), piece.ids.end(), out.begin());
}

void write_targets(const RowPiece& piece, std::span<int32_t> out) {
  std::copy(piece.targets.begin(), piece.targets.end(), out.begin());
  std::fill(out.begin() + static_cast<ptrdiff_t>(piece.targets.size()), out.end(), kIgnoreLabel);
}

// From 0 in each piece and not in each document: tokens before the piece cannot be attended to, and a document as long
// as a book would exceed every model's last position.
void write_positions(const RowPiece& piece, std::span<int32_t> out) {
  std::iota(out.begin(), out.end(), piece.first_position);
}

// A token attends only to its own piece.
void write_document_ids(const RowPiece& piece, std::span<int32_t> out) {
  std::fill(out.begin(), out.end(), piece.document);
}

// The facts of sequences have the entries, which BatchRow::add_unit() writes.
void write_no_entries(const RowPiece&, std::span<int32_t>) {}

constexpr std::array kFields = {
    BatchFieldSpec{"input_ids", CHASSIS_DTYPE_I32, kTokens, std::nullopt, true, write_as<int32_t, write_ids>},
    BatchFieldSpec{"labels", CHASSIS_DTYPE_I32, kTokens, kIgnoreLabel, false, write_as<int32_t, write_targets>},
    BatchFieldSpec{"positions", CHASSIS_DTYPE_I32, kTokens, 0, true, write_as<int32_t, write_positions>},
    BatchFieldSpec{"document_ids", CHASSIS_DTYPE_I32, kTokens, -1, false, write_as<int32_t, write_document_ids>},
    BatchFieldSpec{kTeacherIds, CHASSIS_DTYPE_I32, kEntries, -1, false, write_as<int32_t, write_no_entries>},
};

}  // namespace

std::span<const std::byte> RowPiece::column(std::string_view name) const {
  if (columns == nullptr) return {};
  const auto found = columns->find(name);
  return found == columns->end() ? std::span<const std::byte>() : std::span(found->second);
}

FieldEntries entries_of(const BatchFieldSpec& spec) {
  if (spec.dims.empty() || spec.dims[0] != "B") return FieldEntries::kAppended;
  return spec.dims.size() > 1 && spec.dims[1] == "T" ? FieldEntries::kPositions : FieldEntries::kRows;
}

std::span<const BatchFieldSpec> batch_fields() { return kFields; }

const BatchFieldSpec* find_batch_field(std::string_view name) {
  const auto found =
      std::find_if(kFields.begin(), kFields.end(), [&](const BatchFieldSpec& field) { return field.name == name; });
  return found == kFields.end() ? nullptr : &*found;
}

}  // namespace chassis
