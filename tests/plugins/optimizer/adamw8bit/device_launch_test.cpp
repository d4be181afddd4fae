// How the kernels are launched, as seen on the CPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "device.hpp"

namespace adamw8bit {
namespace {

TEST(AdamW8bitLaunch, UsesTheStreamOfTheCall) {
  float p = 0, g = 0, m = 0, v = 0, codes[512] = {};
  uint8_t average = 0, square = 0;
  int streams[3];
  const auto expect_stream = [](int& stream) {
    EXPECT_EQ(cuda_on_cpu::last_stream(), reinterpret_cast<cudaStream_t>(&stream));
  };
  step_blocks_on_device({&p, &g, &average, &square, &m, &v}, 1, {}, Order::kTorch, codes, nullptr, &streams[0]);
  expect_stream(streams[0]);
  step_fp32_on_device(&p, &g, &m, &v, 1, {}, nullptr, &streams[1]);
  expect_stream(streams[1]);
  step_fp32_bnb_on_device(&p, &g, &m, &v, 1, {}, nullptr, &streams[2]);
  expect_stream(streams[2]);
}

TEST(AdamW8bitLaunch, UsesTheCurrentDevice) {
  float p = 0, g = 0, m = 0, v = 0;
  {
    const CurrentDevice second(1);
    step_fp32_on_device(&p, &g, &m, &v, 1, {}, nullptr, nullptr);
    EXPECT_EQ(cuda_on_cpu::last_device(), 1);
  }
  step_fp32_on_device(&p, &g, &m, &v, 1, {}, nullptr, nullptr);
  EXPECT_EQ(cuda_on_cpu::last_device(), 0) << "is current again";
}

TEST(AdamW8bitLaunch, ThrowsWhatCudaRefuses) {
  float p = 0, g = 0, m = 0, v = 0;
  EXPECT_THROW(CurrentDevice(2), std::runtime_error);
  EXPECT_THROW(step_fp32_on_device(&p, &g, &m, &v, 0, {}, nullptr, nullptr), std::runtime_error);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(AdamW8bitLaunch, CopiesTheCodesOnce) {
  float values[512];
  for (int i = 0; i < 512; ++i) values[i] = static_cast<float>(i);
  DeviceCodes codes;
  const float* table = codes.on(0, values);
  EXPECT_EQ(table[511], 511.0f);
  EXPECT_EQ(codes.on(0, values), table);
  EXPECT_THROW(codes.on(64, values), std::runtime_error);
  EXPECT_THROW(codes.on(-1, values), std::runtime_error);
}

}  // namespace
}  // namespace adamw8bit
