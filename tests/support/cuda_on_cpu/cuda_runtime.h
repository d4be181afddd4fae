// Runs CUDA kernels on the CPU: the language and the part of the runtime that our kernels and their tests use. A kernel
// is launched by chassis::launch_kernel. The threads of a block are fibers, which take turns at barriers and shuffles;
// blocks run one after another, so races between blocks are not seen. A barrier that some threads of the block do not
// reach, or a shuffle without all lanes that it names, ends the process with a message. Shared memory and memory from
// cudaMalloc begin as 0xff, NaN as a float. Not here: a shuffle's `width`, dynamic shared memory, tensor
// cores, asynchronous copies, clusters. Streams are only noted.
#pragma once

#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_on_cpu_shared")))

using std::isfinite;
using std::max;
using std::min;
using std::signbit;

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// --- Arithmetic. The CPU rounds as IEEE 754 says; compile with -ffp-contract=off. -----------------------------------

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
#define rsqrtf(x) (1.0f / std::sqrt(static_cast<float>(x)))

// --- The runtime ----------------------------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
using cudaStream_t = struct CUstream_st*;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* device);
// There are two devices, or those of tests/support/simulated_device if that is in the process. Each thread has its own
// current device; with the simulated devices it is the one that LibTorch has.
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}

// --- Launches -------------------------------------------------------------------------------------------------------

namespace cuda_on_cpu {

// The order in which threads, and blocks, take turns. CUDA_ON_CPU_ORDER chooses it: "ascending", "descending", or
// "shuffled:7", with a seed; set_order replaces it.
enum class Order { kAscending, kDescending, kShuffled };
void set_order(Order order, unsigned seed = 0);

// The stream of the last launch, and the device that was current.
cudaStream_t last_stream();
int last_device();

// Runs body(context) in every thread of the grid.
void run(dim3 grid, dim3 block, cudaStream_t stream, void (*body)(void*), void* context);

template <typename... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream, Parameters... arguments) {
  auto call = [&] { kernel(arguments...); };
  run(
      grid, block, stream, [](void* context) { (*static_cast<decltype(call)*>(context))(); }, &call);
}

// The place of a call in the source.
struct Site {
  const char* file;
  int line;
};

void wait_at_barrier(Site site);
// Gives `bits` to the other lanes of the mask, and returns those of from_lane.
uint64_t exchange(unsigned mask, uint64_t bits, unsigned from_lane, Site site);
unsigned lane();

template <typename T>
T shuffle(unsigned mask, T value, unsigned from_lane, Site site) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(mask, bits, from_lane, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_on_cpu

// --- Threads of a block. The last parameters are the place of the call. ---------------------------------------------

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  cuda_on_cpu::wait_at_barrier({file, line});
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lanes, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  return cuda_on_cpu::shuffle(mask, value, cuda_on_cpu::lane() ^ lanes, {file, line});
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  const unsigned from = cuda_on_cpu::lane() + delta;
  return cuda_on_cpu::shuffle(mask, value, from < 32 ? from : cuda_on_cpu::lane(), {file, line});
}
template <typename T>
T atomicAdd(T* address, T value) {
  T before, after;
  __atomic_load(address, &before, __ATOMIC_RELAXED);
  do {
    after = before + value;
  } while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}
