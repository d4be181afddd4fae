// Fields with entries for positions, for rows, and with entries that pieces append.
#include "host/state/host_field.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace chassis {
namespace {

using Floats = std::vector<float>;

// Each id, repeated over the entry that it has.
void write_floats(const RowPiece& piece, std::span<float> out) {
  const size_t per_id = out.size() / piece.ids.size();
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(piece.ids[i / per_id]);
}
size_t num_ids(const RowPiece& piece, size_t) { return piece.ids.size(); }

constexpr std::string_view kPerPosition[] = {"B", "T", "channels"}, kPerRow[] = {"B", "channels"},
                           kPatches[] = {"patches", "channels"};
constexpr BatchFieldSpec kGaze{"gaze", CHASSIS_DTYPE_F32, kPerPosition, -1, true, write_as<float, write_floats>};
constexpr BatchFieldSpec kStyle{"style", CHASSIS_DTYPE_F32, kPerRow, 0, true, write_as<float, write_floats>};
constexpr BatchFieldSpec kPixels{
    "pixels", CHASSIS_DTYPE_F32, kPatches, std::nullopt, true, write_as<float, write_floats>, num_ids};
const NamedSizes kSizes = {{"B", 2}, {"T", 3}, {"channels", 2}, {"patches", 8}};

Floats floats(const HostField& field) { return {field.values<float>().begin(), field.values<float>().end()}; }

TEST(HostField, KeepsTheIdsOfTheTableAndPadsTheRest) {
  HostField field(*find_batch_field("input_ids"), kSizes, 9);
  EXPECT_EQ(field.dtype(), Dtype::i32);
  EXPECT_EQ(field.shape(), (std::vector<int64_t>{2, 3}));
  const std::vector<int32_t> ids = {4, 5};
  field.write({.ids = ids}, 1, 1);
  EXPECT_TRUE(std::ranges::equal(field.values<int32_t>(), std::vector<int32_t>{9, 9, 9, 9, 4, 5}));
  EXPECT_EQ(HostField(*find_batch_field("labels"), kSizes, 9).values<int32_t>()[0], kIgnoreLabel);
}

TEST(HostField, HasAnEntryForEachPosition) {
  HostField field(kGaze, kSizes);
  const std::vector<int32_t> ids = {4, 5};
  field.write({.ids = ids}, 0, 1);
  field.write({.ids = std::span(ids).first(1)}, 1, 0);
  EXPECT_EQ(floats(field), (Floats{-1, -1, 4, 4, 5, 5, 4, 4, -1, -1, -1, -1}));
  field.shorten(2);
  EXPECT_EQ(field.shape(), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(floats(field), (Floats{-1, -1, 4, 4, 4, 4, -1, -1}));
}

TEST(HostField, HasAnEntryForEachRow) {
  HostField field(kStyle, kSizes);
  const std::vector<int32_t> ids = {7};
  field.write({.ids = ids}, 1, 2);
  field.shorten(1);
  EXPECT_EQ(field.shape(), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(floats(field), (Floats{0, 0, 7, 7}));
}

TEST(HostField, AppendsTheEntriesOfPieces) {
  HostField field(kPixels, kSizes);
  EXPECT_EQ(field.shape(), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(field_shape(kPixels, kSizes), (std::vector<int64_t>{8, 2}));
  const std::vector<int32_t> ids = {4, 5};
  field.write({.ids = ids}, 1, 0);
  field.write({.ids = std::span(ids).last(1)}, 0, 2);
  EXPECT_EQ(field.shape(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(floats(field), (Floats{4, 4, 5, 5, 5, 5}));
}

TEST(HostField, NeedsTheSizesOfItsDims) {
  try {
    field_shape(kPixels, {{"B", 2}, {"T", 3}});
    FAIL() << "the dim has no size";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("field pixels has the dim patches"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace chassis
