// A thread processes 8 elements at a time, which have 4 bytes of codes and lie in one block.
#include "device.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "chassis/launch_kernel.hpp"

namespace bnb4 {
namespace {

using chassis::launch_kernel;

constexpr int kThreads = 256, kWarp = 32, kGroup = 8;
constexpr int kNestedShift = 8;  // 256 absmax share a nested one

template <typename T>
__device__ T rounded(float x);
template <>
__device__ float rounded<float>(float x) {
  return x;
}
template <>
__device__ __half rounded<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

__device__ float widened(float x) { return x; }
__device__ float widened(__half x) { return __half2float(x); }
__device__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// Two roundings when nested, as on the CPU.
__device__ float absmax_of(const DeviceWeight& w, int64_t block) {
  if (w.nested == nullptr) return w.absmax[block];
  const int64_t in_whole = w.first + block + (w.skipped == 0 ? 0 : block / w.row_blocks * w.skipped);
  return __fadd_rn(__fmul_rn(w.nested_map[w.nested[block]], w.nested_absmax[in_whole >> kNestedShift]), *w.offset);
}

// 8 consecutive elements of 16 or 32 bytes in total, stored at once.
template <typename T>
struct alignas(sizeof(T) * kGroup < 16 ? sizeof(T) * kGroup : 16) Group {
  T values[kGroup];
};

__device__ int code_at(const uint8_t* codes, int64_t element) {
  const int both = codes[element >> 1];
  return element & 1 ? both & 15 : both >> 4;
}

template <typename T>
__global__ void dequantize_kernel(DeviceWeight w, int64_t elements, T* values) {
  __shared__ float map[16];
  if (threadIdx.x < 16) map[threadIdx.x] = w.map[threadIdx.x];
  __syncthreads();
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kGroup;
  if (first >= elements) return;
  const float absmax = absmax_of(w, first / w.block);
  if (first + kGroup > elements) {
    for (int64_t i = first; i < elements; ++i) values[i] = rounded<T>(__fmul_rn(map[code_at(w.codes, i)], absmax));
    return;
  }
  Group<T> out;
#pragma unroll
  for (int j = 0; j < kGroup / 2; ++j) {
    const int both = w.codes[first / 2 + j];
    out.values[2 * j] = rounded<T>(__fmul_rn(map[both >> 4], absmax));
    out.values[2 * j + 1] = rounded<T>(__fmul_rn(map[both & 15], absmax));
  }
  *reinterpret_cast<Group<T>*>(values + first) = out;
}

// One warp sums one row of the weight with M rows of x.
template <typename T, int M>
__global__ void rows_kernel(DeviceWeight w, const T* x, const T* bias, T* y) {
  __shared__ float map[16];
  if (threadIdx.x < 16) map[threadIdx.x] = w.map[threadIdx.x];
  __syncthreads();
  const int64_t n = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (n >= w.rows) return;
  const int lane = threadIdx.x % kWarp;
  float sums[M] = {};
  for (int64_t k = lane * kGroup; k < w.columns; k += kWarp * kGroup) {
    const int64_t first = n * w.columns + k;
    const float absmax = absmax_of(w, first / w.block);
    const uint32_t codes = *reinterpret_cast<const uint32_t*>(w.codes + first / 2);
    float values[kGroup];
#pragma unroll
    for (int j = 0; j < kGroup / 2; ++j) {
      const uint32_t both = codes >> (8 * j) & 255u;
      values[2 * j] = map[both >> 4];
      values[2 * j + 1] = map[both & 15u];
    }
#pragma unroll
    for (int r = 0; r < M; ++r) {
      const Group<T> from = *reinterpret_cast<const Group<T>*>(x + r * w.columns + k);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) sum = fmaf(values[j], widened(from.values[j]), sum);
      sums[r] = fmaf(sum, absmax, sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < M; ++r) {
    for (int step = kWarp / 2; step > 0; step /= 2) sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], step);
    if (lane == 0) y[r * w.rows + n] = rounded<T>(bias == nullptr ? sums[r] : sums[r] + widened(bias[n]));
  }
}

// Makes a device current while it exists.
struct Current {
  explicit Current(int device) {
    error = cudaGetDevice(&before);
    if (error == cudaSuccess && before != device) error = cudaSetDevice(device);
  }
  ~Current() { cudaSetDevice(before); }
  int before = 0;
  cudaError_t error;
};

template <typename Launch>
const char* launch(const DeviceStream& on, Launch&& body) {
  Current current(on.device);
  if (current.error == cudaSuccess) {
    body(static_cast<cudaStream_t>(on.stream));
    current.error = cudaGetLastError();
  }
  return current.error == cudaSuccess ? nullptr : cudaGetErrorString(current.error);
}

// Calls body with a null pointer to the C++ type of `dtype`.
template <typename Body>
void with_type(DeviceDtype dtype, Body&& body) {
  switch (dtype) {
    case DeviceDtype::kF32:
      return body(static_cast<float*>(nullptr));
    case DeviceDtype::kF16:
      return body(static_cast<__half*>(nullptr));
    case DeviceDtype::kBF16:
      return body(static_cast<__nv_bfloat16*>(nullptr));
  }
}

template <typename T, int M>
void launch_rows(cudaStream_t stream, const DeviceWeight& w, int64_t m, const T* x, const T* bias, T* y) {
  if constexpr (M > 1)
    if (m < M) return launch_rows<T, M - 1>(stream, w, m, x, bias, y);
  constexpr int64_t kRows = kThreads / kWarp;
  launch_kernel(rows_kernel<T, M>, static_cast<unsigned>((w.rows + kRows - 1) / kRows), kThreads, stream, w, x, bias,
                y);
}

bool is_aligned(const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

const char* dequantize_on_device(const DeviceStream& on, const DeviceWeight& w, DeviceDtype dtype, void* values) {
  const int64_t elements = w.rows * w.columns, step = int64_t{kThreads} * kGroup;
  if (elements == 0) return nullptr;
  return launch(on, [&](cudaStream_t stream) {
    with_type(dtype, [&](auto* t) {
      using Pointer = decltype(t);
      launch_kernel(dequantize_kernel<std::remove_pointer_t<Pointer>>,
                    static_cast<unsigned>((elements + step - 1) / step), kThreads, stream, w, elements,
                    static_cast<Pointer>(values));
    });
  });
}

bool suits_device_rows(const DeviceWeight& w, const void* x) {
  return w.columns % kGroup == 0 && is_aligned(w.codes, 4) && is_aligned(x, 16);
}

const char* multiply_rows_on_device(const DeviceStream& on, const DeviceWeight& w, DeviceDtype dtype, int64_t m,
                                    const void* x, const void* bias, void* y) {
  if (w.rows == 0 || m == 0) return nullptr;
  return launch(on, [&](cudaStream_t stream) {
    with_type(dtype, [&](auto* t) {
      using Pointer = decltype(t);
      using T = std::remove_pointer_t<Pointer>;
      launch_rows<T, kMaxDeviceRows>(stream, w, m, static_cast<const T*>(x), static_cast<const T*>(bias),
                                     static_cast<Pointer>(y));
    });
  });
}

}  // namespace bnb4
