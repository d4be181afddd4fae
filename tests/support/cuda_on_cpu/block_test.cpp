// The scheduler gives kernels their threads, and refuses those that do not meet.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "chassis/launch_kernel.hpp"
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace {

using chassis::launch_kernel;
using cuda_on_cpu::Order;

constexpr unsigned kFull = 0xffffffff;

class CudaOnCpu : public testing::Test {
 protected:
  CudaOnCpu() { cuda_on_cpu::set_order(Order::kAscending); }
};

void in_each_order(auto&& body) {
  for (const Order order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
    SCOPED_TRACE(static_cast<int>(order));
    cuda_on_cpu::set_order(order, 3);
    body();
  }
}

TEST_F(CudaOnCpu, HasTwoDevicesOfWhichEachThreadHasOne) {
  const auto current = [] {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    return device;
  };
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  std::thread([&] { EXPECT_EQ(current(), 0); }).join();
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  EXPECT_EQ(current(), 1);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

__global__ void write_index(int* out) {
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(100 * block + thread);
}

TEST_F(CudaOnCpu, RunsEveryThreadOfEveryBlockOnce) {
  in_each_order([] {
    std::vector<int> out(12 * 30);
    launch_kernel(write_index, dim3(2, 3, 2), dim3(5, 3, 2), nullptr, out.data());
    for (int i = 0; i < 12 * 30; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 100 * (i / 30) + i % 30);
  });
}

__global__ void note_turn(unsigned* next, unsigned* turns) {
  turns[atomicAdd(next, 1u)] = blockIdx.x * 64 + threadIdx.x;
}

std::vector<unsigned> turns_of(Order order, unsigned seed) {
  cuda_on_cpu::set_order(order, seed);
  unsigned next = 0;
  std::vector<unsigned> turns(128);
  launch_kernel(note_turn, 2, 64, nullptr, &next, turns.data());
  return turns;
}

TEST_F(CudaOnCpu, TakesTurnsInTheChosenOrder) {
  std::vector<unsigned> expected(128);
  for (unsigned i = 0; i < 128; ++i) expected[i] = i;
  EXPECT_EQ(turns_of(Order::kAscending, 0), expected);
  std::vector<unsigned> shuffled = turns_of(Order::kShuffled, 1);
  EXPECT_NE(shuffled, expected);
  EXPECT_EQ(turns_of(Order::kShuffled, 1), shuffled);
  EXPECT_NE(turns_of(Order::kShuffled, 2), shuffled);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, expected);
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(turns_of(Order::kDescending, 0), expected);
}

__global__ void reverse(int* values) {
  __shared__ int copy[96];
  copy[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = copy[95 - threadIdx.x];
}

TEST_F(CudaOnCpu, WaitsAtBarriers) {
  in_each_order([] {
    std::vector<int> values(96), expected(96);
    for (int i = 0; i < 96; ++i) values[static_cast<size_t>(i)] = i, expected[static_cast<size_t>(i)] = 95 - i;
    launch_kernel(reverse, 1, 96, nullptr, values.data());
    EXPECT_EQ(values, expected);
  });
}

__global__ void read_shared(float* out) {
  __shared__ float never_written;
  out[blockIdx.x] = never_written;
  never_written = 1;
}

TEST_F(CudaOnCpu, BeginsEveryBlockWithInvalidSharedMemory) {
  float out[2] = {};
  launch_kernel(read_shared, 2, 1, nullptr, &out[0]);
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]));
}

__global__ void shuffle_values(int* out, double* sums) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  out[threadIdx.x] = __shfl_xor_sync(kFull, lane, 5);
  out[64 + threadIdx.x] = __shfl_down_sync(kFull, lane, 8);
  if (lane >= 4) return;
  const double other = __shfl_xor_sync(0xfu, 0.5 + lane, 2);
  if (lane == 0) sums[threadIdx.x / 32] = other;
}

TEST_F(CudaOnCpu, ShufflesWithinAWarp) {
  in_each_order([] {
    std::vector<int> out(128);
    double sums[2];
    launch_kernel(shuffle_values, 1, 64, nullptr, out.data(), &sums[0]);
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(out[static_cast<size_t>(i)], i % 32 ^ 5);
      EXPECT_EQ(out[static_cast<size_t>(64 + i)], i % 32 < 24 ? i % 32 + 8 : i % 32);
    }
    EXPECT_EQ(sums[0], 2.5);
    EXPECT_EQ(sums[1], 2.5);
  });
}

__global__ void count(unsigned* integers, float* reals) {
  atomicAdd(&integers[threadIdx.x % 2], 1u);
  atomicAdd(reals, 0.5f);
}

TEST_F(CudaOnCpu, AddsAtomically) {
  unsigned integers[2] = {};
  float real = 0;
  launch_kernel(count, 3, 64, nullptr, &integers[0], &real);
  EXPECT_EQ(integers[0], 96u);
  EXPECT_EQ(integers[1], 96u);
  EXPECT_EQ(real, 96.0f);
}

TEST_F(CudaOnCpu, RefusesGridsThatCudaRefuses) {
  std::vector<int> out(1024);
  const auto error_of = [&](dim3 grid, dim3 block) {
    launch_kernel(write_index, grid, block, nullptr, out.data());
    return cudaGetLastError();
  };
  EXPECT_EQ(error_of(1, 1024), cudaSuccess);
  EXPECT_EQ(error_of(1, 1025), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, dim3(1, 1, 65)), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(0, 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(dim3(1, 65536), 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 1), cudaSuccess) << "the error was reported";
}

TEST_F(CudaOnCpu, NotesTheStream) {
  int stream = 0, out = 0;
  launch_kernel(write_index, 1, 1, reinterpret_cast<cudaStream_t>(&stream), &out);
  EXPECT_EQ(cuda_on_cpu::last_stream(), reinterpret_cast<cudaStream_t>(&stream));
}

TEST_F(CudaOnCpu, RoundsToTheNearest) {
  const auto half = [](float x) { return __float2half_rn(x).bits; };
  EXPECT_EQ(half(1 + 0x1p-11f), 0x3c00);  // ties to even
  EXPECT_EQ(half(1 + 0x3p-11f), 0x3c02);
  EXPECT_EQ(half(-65520), 0xfc00);
  EXPECT_EQ(half(65519), 0x7bff);
  EXPECT_EQ(half(0x3p-25f), 2);
  EXPECT_EQ(half(-NAN), 0x7fff);
  EXPECT_EQ(__half2float(__float2half_rn(-0x3p-24f)), -0x3p-24f);
  const auto brain = [](float x) { return __float2bfloat16_rn(x).bits; };
  EXPECT_EQ(brain(1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(brain(1 + 0x3p-8f), 0x3f82);
  EXPECT_EQ(brain(-NAN), 0x7fff);
  EXPECT_EQ(__bfloat162float(__float2bfloat16_rn(-1.5f)), -1.5f);
}

// --- Defects --------------------------------------------------------------------------------------------------------

using CudaOnCpuDeathTest = CudaOnCpu;

__global__ void barrier_for_some() {
  if (threadIdx.x < 40) __syncthreads();
}
__global__ void two_barriers() {
  if (threadIdx.x < 40) __syncthreads();
  if (threadIdx.x >= 40) __syncthreads();
}
__global__ void return_before_shuffle() {
  if (threadIdx.x == 7) return;
  __shfl_xor_sync(kFull, 1, 1);
}
__global__ void lane_without_mask() { __shfl_xor_sync(0x0000ffff, 1, 1); }
__global__ void read_outside_mask() {
  if (threadIdx.x < 16) __shfl_xor_sync(0x0000ffff, 1, 16);
}
__global__ void shuffle_in_divergent_code() {
  if (threadIdx.x < 16) __shfl_xor_sync(kFull, 1, 1);
  if (threadIdx.x >= 16) __shfl_xor_sync(kFull, 1, 1);
}
__global__ void barrier_next_to_shuffle() {
  if (threadIdx.x < 32)
    __shfl_xor_sync(kFull, 1, 1);
  else
    __syncthreads();
  if (threadIdx.x < 16) __shfl_xor_sync(kFull, 1, 1);
  if (threadIdx.x >= 16 && threadIdx.x < 32) __syncthreads();
}

TEST_F(CudaOnCpuDeathTest, NamesTheThreadsThatDoNotMeet) {
  const auto run = [](void (*kernel)(), unsigned threads) { launch_kernel(kernel, 1, threads, nullptr); };
  EXPECT_DEATH(
      run(barrier_for_some, 64),
      "block .0,0,0.: thread .0,0,0. waits at the barrier .*block_test.cpp:[0-9]+; thread .40,0,0. has returned");
  EXPECT_DEATH(run(two_barriers, 64), "thread .0,0,0. waits at the barrier .*; thread .40,0,0. waits at the barrier");
  EXPECT_DEATH(run(return_before_shuffle, 32), "waits at the shuffle .*; thread .7,0,0. has returned");
  EXPECT_DEATH(run(return_before_shuffle, 20), "whose mask names lane 20 of 32|thread .7,0,0. has returned");
  EXPECT_DEATH(run(lane_without_mask, 32), "thread .16,0,0. is not in the mask of its shuffle .*block_test.cpp");
  EXPECT_DEATH(run(read_outside_mask, 32), "thread .0,0,0. waits at the shuffle .* reads lane 16, which is not in");
  EXPECT_DEATH(run(shuffle_in_divergent_code, 32), "waits at the shuffle .* without other lanes of its mask");
  EXPECT_DEATH(run(barrier_next_to_shuffle, 64), "waits at the barrier .*; thread .0,0,0. waits at the shuffle");
}

#if defined(__SANITIZE_ADDRESS__)
__global__ void write_at(float* values, unsigned i) { values[i] = 1; }

TEST_F(CudaOnCpuDeathTest, LetsAddressSanitizerSeeTheBoundsOfBuffers) {
  float* values = nullptr;
  ASSERT_EQ(cudaMalloc(&values, 3 * sizeof(float)), cudaSuccess);
  launch_kernel(write_at, 1, 1, nullptr, values, 2u);
  EXPECT_DEATH(launch_kernel(write_at, 1, 1, nullptr, values, 3u), "heap-buffer-overflow");
  cudaFree(values);
}
#endif

}  // namespace
