// Names and sizes of dtypes.
#include "host/state/dtype.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"
#include "host/state/float_dtype.hpp"
#include "tests/support/expect_has.hpp"

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

TEST(Dtype, IsFoundByItsName) {
  for (Dtype dtype : kAllDtypes) {
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_GT(size_bytes(dtype), 0);
  }
  EXPECT_EQ(dtype_from_name("F32"), std::nullopt);
}

TEST(FloatDtype, IsFoundByTheNamesOfUsersAndOfModelConfigs) {
  for (const char* name : {"fp32", "float32"}) EXPECT_EQ(float_dtype(name, "export.dtype"), Dtype::f32);
  for (const char* name : {"bf16", "bfloat16"}) EXPECT_EQ(float_dtype(name, "export.dtype"), Dtype::bf16);
  for (const char* name : {"fp16", "float16"}) EXPECT_EQ(float_dtype(name, "export.dtype"), Dtype::f16);
  for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
    EXPECT_EQ(float_dtype(float_dtype_name(dtype), "export.dtype"), dtype);
}

TEST(FloatDtype, RefusesOtherNames) {
  for (const char* name : {"float64", "f32", "", "auto", "float8_e4m3fn"}) {
    try {
      float_dtype(name, "export.dtype");
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_HAS(error.message(), "export.dtype is '" + std::string(name) + "'; it can be fp32, bf16 or fp16");
    }
  }
}

TEST(Dtype, HasNoSizeOutsideTheEnumeration) { EXPECT_EQ(size_bytes(static_cast<Dtype>(77)), 0); }

}  // namespace
}  // namespace chassis
