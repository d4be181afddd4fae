// How the kernels are launched, as seen on the CPU; and rows in 16 bits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "plugins/quant/bnb4/device.hpp"

namespace {

using namespace bnb4;

// A weight of 3 rows and 16 columns with values in [0, 15] · absmax.
struct Plain {
  Plain() {
    for (int i = 0; i < 16; ++i) map.push_back(static_cast<float>(i));
    for (int i = 0; i < 24; ++i) codes.push_back(static_cast<uint8_t>(37 * i));
    weight.codes = codes.data(), weight.map = map.data(), weight.absmax = absmax.data();
    weight.rows = 3, weight.columns = 16, weight.block = 16;
  }
  float value(size_t i) const { return map[i % 2 == 1 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * absmax[i / 16]; }
  std::vector<float> map, absmax = {1, 0.5f, 2};
  alignas(16) std::vector<uint8_t> codes;
  DeviceWeight weight{};
};

TEST(Bnb4Launch, UsesTheStreamOfTheCall) {
  const Plain w;
  int streams[2];
  std::vector<float> values(48), y(3);
  alignas(16) const float x[16] = {};
  ASSERT_EQ(dequantize_on_device({0, &streams[0]}, w.weight, DeviceDtype::kF32, values.data()), nullptr);
  EXPECT_EQ(cuda_on_cpu::last_stream(), reinterpret_cast<cudaStream_t>(&streams[0]));
  ASSERT_EQ(multiply_rows_on_device({0, &streams[1]}, w.weight, DeviceDtype::kF32, 1, x, nullptr, y.data()), nullptr);
  EXPECT_EQ(cuda_on_cpu::last_stream(), reinterpret_cast<cudaStream_t>(&streams[1]));
}

TEST(Bnb4Launch, UsesTheDeviceOfTheCall) {
  const Plain w;
  std::vector<float> values(48);
  ASSERT_EQ(dequantize_on_device({1, nullptr}, w.weight, DeviceDtype::kF32, values.data()), nullptr);
  EXPECT_EQ(cuda_on_cpu::last_device(), 1);
  int device = -1;
  cudaGetDevice(&device);
  EXPECT_EQ(device, 0) << "is current again";
}

TEST(Bnb4Launch, ReportsWhatCudaRefuses) {
  const Plain w;
  float values[48];
  EXPECT_STREQ(dequantize_on_device({2, nullptr}, w.weight, DeviceDtype::kF32, values), "invalid device ordinal");
}

TEST(Bnb4Launch, TakesOnlyAlignedRowsOfWholeGroups) {
  Plain w;
  alignas(16) const char x[32] = {};
  EXPECT_TRUE(suits_device_rows(w.weight, x));
  EXPECT_FALSE(suits_device_rows(w.weight, x + 8));
  w.weight.codes += 2;
  EXPECT_FALSE(suits_device_rows(w.weight, x));
  w.weight.codes -= 2, w.weight.columns = 12;
  EXPECT_FALSE(suits_device_rows(w.weight, x));
}

template <typename T>
void multiplies_one_row(DeviceDtype dtype) {
  const Plain w;
  alignas(16) T x[16];
  T bias[3], y[3];
  for (int i = 0; i < 16; ++i) x[i] = static_cast<T>(0.125f * static_cast<float>(i % 5));
  for (int i = 0; i < 3; ++i) bias[i] = static_cast<T>(static_cast<float>(i));
  ASSERT_EQ(multiply_rows_on_device({0, nullptr}, w.weight, dtype, 1, x, bias, y), nullptr);
  for (size_t n = 0; n < 3; ++n) {
    float sum = static_cast<float>(n);  // exact
    for (size_t k = 0; k < 16; ++k) sum += static_cast<float>(x[k]) * w.value(n * 16 + k);
    EXPECT_EQ(y[n].bits, static_cast<T>(sum).bits) << n;
  }
}

TEST(Bnb4Launch, MultipliesRowsIn16Bits) {
  multiplies_one_row<__half>(DeviceDtype::kF16);
  multiplies_one_row<__nv_bfloat16>(DeviceDtype::kBF16);
}

}  // namespace
