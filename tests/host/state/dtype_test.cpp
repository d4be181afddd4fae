#include "host/state/dtype.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

TEST(Dtype, HasTheValuesOfTheCInterface) {
  EXPECT_EQ(static_cast<uint32_t>(Dtype::f32), 1u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::f64), 2u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::f16), 3u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::bf16), 4u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::i64), 5u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::i32), 6u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::i16), 7u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::i8), 8u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::u8), 9u);
  EXPECT_EQ(static_cast<uint32_t>(Dtype::bool8), 10u);
}

TEST(Dtype, FindsItselfByBothNames) {
  for (Dtype dtype : kAllDtypes) {
    EXPECT_EQ(dtype_from_safetensors(safetensors_name(dtype)), dtype);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_GT(size_bytes(dtype), 0);
  }
  EXPECT_EQ(dtype_from_safetensors("BF16"), Dtype::bf16);
  EXPECT_EQ(dtype_from_safetensors("F8_E4M3"), std::nullopt);
  EXPECT_EQ(dtype_from_name("F32"), std::nullopt);
}

TEST(Dtype, HasNoSizeOutsideOfTheEnumeration) { EXPECT_EQ(size_bytes(static_cast<Dtype>(77)), 0); }

}  // namespace
}  // namespace chassis
