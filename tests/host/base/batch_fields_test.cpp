// The values that each field of a batch has for a part of a document.
#include "host/base/batch_fields.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace chassis {
namespace {

std::vector<int32_t> written(std::string_view name, const RowPiece& piece) {
  std::vector<int32_t> out(piece.ids.size(), 77);
  find_batch_field(name)->write(piece, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(BatchFields, HaveTheValuesOfAPiece) {
  const std::vector<int32_t> ids = {5, 6, 7}, targets = {6, kIgnoreLabel};
  const RowPiece piece{.ids = ids, .targets = targets, .first_position = 4, .document = 2};
  EXPECT_EQ(written("input_ids", piece), ids);
  EXPECT_EQ(written("labels", piece), (std::vector<int32_t>{6, kIgnoreLabel, kIgnoreLabel}));
  EXPECT_EQ(written("positions", piece), (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(written("document_ids", piece), (std::vector<int32_t>{2, 2, 2}));
}

TEST(BatchFields, FindTheColumnsOfADocument) {
  const DocumentColumns columns = {{"image", {std::byte{3}, std::byte{4}}}};
  RowPiece piece;
  EXPECT_TRUE(piece.column("image").empty());
  piece.columns = &columns;
  EXPECT_EQ(piece.column("image").size(), 2u);
  EXPECT_TRUE(piece.column("sound").empty());
}

TEST(BatchFields, BeginWithTheDimsThatNumberTheirEntries) {
  for (const BatchFieldSpec& field : batch_fields())
    EXPECT_EQ(entries_of(field), FieldEntries::kPositions) << field.name;
  static constexpr std::string_view kRow[] = {"B", "channels"}, kPatches[] = {"patches", "channels"};
  BatchFieldSpec spec = *find_batch_field("labels");
  spec.dims = kRow;
  EXPECT_EQ(entries_of(spec), FieldEntries::kRows);
  spec.dims = kPatches;
  EXPECT_EQ(entries_of(spec), FieldEntries::kAppended);
}

TEST(BatchFields, HaveNamesOfTheirOwn) {
  for (const BatchFieldSpec& field : batch_fields()) EXPECT_EQ(find_batch_field(field.name), &field) << field.name;
  EXPECT_EQ(find_batch_field("pixels"), nullptr);
}

}  // namespace
}  // namespace chassis
