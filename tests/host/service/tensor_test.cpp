// The host's tensors: views, copies, casts and reductions.
#include "host/service/tensor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "host/base/error.hpp"

namespace chassis {
namespace {

Tensor counting(int64_t count) {
  const int64_t sizes[] = {count};
  Tensor out = Tensor::empty(sizes, Dtype::f32);
  std::iota(out.data_as<float>(), out.data_as<float>() + count, 0.0f);
  return out;
}

TEST(Tensor, SharesMemoryWithCopiesAndNotWithClones) {
  const Tensor a = counting(4);
  const Tensor b = a, c = a.clone();
  b.fill(7);
  EXPECT_EQ(a.data_as<float>()[2], 7);
  EXPECT_EQ(c.data_as<float>()[2], 2);
  EXPECT_TRUE(a.shares_storage_with(b));
  EXPECT_FALSE(a.shares_storage_with(c));
}

TEST(Tensor, IsEmptyAfterAMove) {
  Tensor a = counting(2);
  const Tensor b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_TRUE(b);
}

TEST(Tensor, SharesStorageWithItsViews) {
  const Tensor a = counting(12);
  const int64_t shape[] = {3, 4};
  const Tensor rows = a.view(shape), middle = rows.narrow(0, 1, 1), columns = rows.narrow(1, 1, 2);
  EXPECT_EQ(middle.sizes(), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(middle.data_as<float>()[0], 4);
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_EQ(columns.contiguous().data_as<float>()[2], 5);
  EXPECT_EQ(rows.flat().num_elements(), 12);
  EXPECT_THROW(columns.view(shape), Error);
}

TEST(Tensor, RefusesStridedViewsBeyondItsEnd) {
  const Tensor whole = counting(12), a = whole.narrow(0, 2, 10);
  const int64_t sizes[] = {2, 3}, strides[] = {4, 1}, far[] = {8, 1};
  const Tensor box = a.strided(sizes, strides, 1).contiguous();
  EXPECT_EQ(box.data_as<float>()[0], 3);
  EXPECT_EQ(box.data_as<float>()[5], 9);
  EXPECT_THROW(a.strided(sizes, far, 0), Error);
  EXPECT_THROW(a.strided(sizes, strides, 4), Error);
  EXPECT_THROW(a.strided(sizes, strides, -1), Error);
}

TEST(Tensor, CanBeReadAsAnotherDtype) {
  const Tensor bytes = counting(4).reinterpret(Dtype::u8);
  EXPECT_EQ(bytes.num_elements(), 16);
  EXPECT_EQ(bytes.narrow(0, 4, 8).reinterpret(Dtype::f32).data_as<float>()[1], 2);
  EXPECT_THROW(bytes.narrow(0, 0, 3).reinterpret(Dtype::f32), Error);
}

TEST(Tensor, CastsWhenItIsCopied) {
  const int64_t sizes[] = {3};
  const Tensor narrow = Tensor::zeros(sizes, Dtype::bf16), wide = counting(3);
  narrow.copy_from(wide);
  EXPECT_EQ(narrow.to(Dtype::f32).data_as<float>()[2], 2);
  EXPECT_EQ(narrow.num_bytes(), 6u);
  EXPECT_TRUE(wide.to(Dtype::f32).shares_storage_with(wide));
}

TEST(Tensor, RefusesACopyOfAnotherShape) { EXPECT_THROW(counting(3).copy_from(counting(4)), Error); }

TEST(Tensor, AddsAndMultipliesInPlace) {
  const Tensor a = counting(3), b = counting(3);
  a.add(b, 2.0);
  a.multiply(0.5);
  EXPECT_EQ(a.data_as<float>()[2], 3);
}

TEST(Tensor, SumsSquaresInDoublePrecision) {
  const int64_t count = 1'000'000;
  const int64_t sizes[] = {count};
  const Tensor a = Tensor::empty(sizes, Dtype::f32);
  a.fill(0.1);
  const double exact = static_cast<double>(0.1f) * static_cast<double>(0.1f) * count;
  EXPECT_NEAR(a.sum_of_squares() / exact, 1.0, 1e-12);
  EXPECT_NEAR(a.to(Dtype::bf16).to(Dtype::f64).sum_of_squares(), a.to(Dtype::bf16).sum_of_squares(), 1e-6);
  const int64_t none[] = {0};
  EXPECT_EQ(Tensor::empty(none, Dtype::f32).sum_of_squares(), 0.0);
}

TEST(Tensor, FindsValuesThatAreNotFinite) {
  for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16})
    for (float bad : {NAN, INFINITY, -INFINITY}) {
      const Tensor a = counting(100'000);
      EXPECT_TRUE(a.to(dtype).all_finite());
      a.data_as<float>()[99'999] = bad;
      EXPECT_FALSE(a.to(dtype).all_finite()) << bad << " in " << dtype_name(dtype);
    }
}

TEST(Tensor, BorrowsTheCallersMemory) {
  float data[] = {1, 2, 3};
  const int64_t sizes[] = {3};
  Tensor::borrow(data, sizes, Dtype::f32).multiply(2);
  EXPECT_EQ(data[2], 6);
}

TEST(Tensor, LivesOnMetaWithoutMemory) {
  const int64_t sizes[] = {1 << 20, 1 << 20};
  const Tensor a = Tensor::empty(sizes, Dtype::f32, {Device::Type::kMeta, 0});
  EXPECT_EQ(a.num_bytes(), 4ull << 40);
  EXPECT_EQ(a.device().text(), "meta");
}

TEST(Tensor, ConvertsErrorsOfLibTorch) {
  try {
    counting(4).narrow(0, 3, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_EQ(std::string(error.what()).find("frame #"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace chassis
