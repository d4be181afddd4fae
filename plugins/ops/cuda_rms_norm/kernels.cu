// Forward and dx use one thread block per row; dweight uses column tiles over chunks of rows, then a second pass.
#include "kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "chassis/launch_kernel.hpp"

namespace cuda_rms_norm {
namespace {

using chassis::launch_kernel;

constexpr int kThreads = 256;
constexpr int kTileColumns = 32, kTileRows = 8;
constexpr int64_t kRowsPerPartial = 128, kMaxPartials = 256;

template <typename T>
__device__ float load(const T* p) {
  return static_cast<float>(*p);
}
template <typename T>
__device__ T cast(float v) {
  return static_cast<T>(v);
}

// The sum over a thread block, returned to every thread.
__device__ float block_sum(float v) {
  __shared__ float warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  __syncthreads();  // all threads have read the previous sum
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += warps[i];
  return sum;
}

template <typename T, typename W>
__global__ void forward_kernel(int64_t n, float eps, const T* x, const W* weight, T* y, float* inverse_rms) {
  const int64_t row = blockIdx.x;
  x += row * n;
  y += row * n;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) squares += load(x + i) * load(x + i);
  const float inverse = rsqrtf(block_sum(squares) / n + eps);
  if (threadIdx.x == 0 && inverse_rms != nullptr) inverse_rms[row] = inverse;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    y[i] = cast<T>(static_cast<float>(cast<T>(load(x + i) * inverse)) * load(weight + i));
  }
}

template <typename T, typename W>
__global__ void backward_input_kernel(int64_t n, const T* x, const W* weight, const float* inverse_rms, const T* dy,
                                      T* dx, bool add) {
  const int64_t row = blockIdx.x;
  x += row * n;
  dy += row * n;
  dx += row * n;
  const float inverse = inverse_rms[row];
  float dot = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) dot += load(dy + i) * load(weight + i) * load(x + i) * inverse;
  const float mean = block_sum(dot) / n;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float d = inverse * (load(dy + i) * load(weight + i) - load(x + i) * inverse * mean);
    dx[i] = cast<T>(add ? load(dx + i) + d : d);
  }
}

template <typename T>
__global__ void partial_kernel(int64_t num_rows, int64_t n, const T* x, const float* inverse_rms, const T* dy,
                               float* partial) {
  __shared__ float tile[kTileRows][kTileColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kTileColumns + threadIdx.x;
  float sum = 0;
  if (column < n) {
    for (int64_t row = static_cast<int64_t>(blockIdx.y) * kTileRows + threadIdx.y; row < num_rows;
         row += static_cast<int64_t>(gridDim.y) * kTileRows) {
      sum += load(dy + row * n + column) * static_cast<float>(cast<T>(load(x + row * n + column) * inverse_rms[row]));
    }
  }
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < n) {
    for (int i = 1; i < kTileRows; ++i) sum += tile[i][threadIdx.x];
    partial[blockIdx.y * n + column] = sum;
  }
}

__global__ void reduce_kernel(int64_t num_partials, int64_t n, const float* partial, float* dweight, float beta) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= n) return;
  float sum = 0;
  for (int64_t i = 0; i < num_partials; ++i) sum += partial[i * n + column];
  dweight[column] = (beta == 0 ? 0.0f : beta * dweight[column]) + sum;
}

// Makes a device current while it exists.
struct DeviceGuard {
  explicit DeviceGuard(int device) {
    error = cudaGetDevice(&before);
    if (error == cudaSuccess && before != device) error = cudaSetDevice(device);
  }
  ~DeviceGuard() { cudaSetDevice(before); }
  int before = 0;
  cudaError_t error;
};

template <typename Launch>
const char* launch(const Problem& problem, Launch&& body) {
  if (problem.num_rows == 0 || problem.n == 0) return nullptr;
  DeviceGuard guard(problem.device);
  if (guard.error == cudaSuccess) {
    body(static_cast<cudaStream_t>(problem.stream));
    guard.error = cudaGetLastError();
  }
  return guard.error == cudaSuccess ? nullptr : cudaGetErrorString(guard.error);
}

// Calls body with a null pointer to the C++ type of `dtype`.
template <typename Body>
void with_type(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kF32: return body(static_cast<float*>(nullptr));
    case Dtype::kF16: return body(static_cast<__half*>(nullptr));
    case Dtype::kBF16: return body(static_cast<__nv_bfloat16*>(nullptr));
  }
}

}  // namespace

const char* forward(const Problem& p, const void* x, const void* weight, void* y, float* inverse_rms) {
  return launch(p, [&](cudaStream_t stream) {
    with_type(p.dtype, [&](auto* t) {
      using T = std::remove_pointer_t<decltype(t)>;
      with_type(p.weight_dtype, [&](auto* w) {
        using W = std::remove_pointer_t<decltype(w)>;
        launch_kernel(forward_kernel<T, W>, static_cast<unsigned>(p.num_rows), kThreads, stream, p.n, p.eps,
                      static_cast<const T*>(x), static_cast<const W*>(weight), static_cast<T*>(y), inverse_rms);
      });
    });
  });
}

const char* backward_input(const Problem& p, const void* x, const void* weight, const float* inverse_rms,
                           const void* dy, void* dx, bool add) {
  return launch(p, [&](cudaStream_t stream) {
    with_type(p.dtype, [&](auto* t) {
      using T = std::remove_pointer_t<decltype(t)>;
      with_type(p.weight_dtype, [&](auto* w) {
        using W = std::remove_pointer_t<decltype(w)>;
        launch_kernel(backward_input_kernel<T, W>, static_cast<unsigned>(p.num_rows), kThreads, stream, p.n,
                      static_cast<const T*>(x), static_cast<const W*>(weight), inverse_rms, static_cast<const T*>(dy),
                      static_cast<T*>(dx), add);
      });
    });
  });
}

int64_t num_partials(int64_t num_rows) {
  const int64_t wanted = (num_rows + kRowsPerPartial - 1) / kRowsPerPartial;
  return wanted < 1 ? 1 : wanted > kMaxPartials ? kMaxPartials : wanted;
}

const char* backward_weight(const Problem& p, const void* x, const float* inverse_rms, const void* dy, float* partial,
                            float* dweight, float beta) {
  // Runs even without rows, since beta still applies.
  if (p.n == 0) return nullptr;
  DeviceGuard guard(p.device);
  if (guard.error != cudaSuccess) return cudaGetErrorString(guard.error);
  const int64_t partials = num_partials(p.num_rows);
  const auto stream = static_cast<cudaStream_t>(p.stream);
  const dim3 tiles(static_cast<unsigned>((p.n + kTileColumns - 1) / kTileColumns), static_cast<unsigned>(partials));
  with_type(p.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    launch_kernel(partial_kernel<T>, tiles, dim3(kTileColumns, kTileRows), stream, p.num_rows, p.n,
                  static_cast<const T*>(x), inverse_rms, static_cast<const T*>(dy), partial);
  });
  launch_kernel(reduce_kernel, static_cast<unsigned>((p.n + kThreads - 1) / kThreads), kThreads, stream, partials, p.n,
                partial, dweight, beta);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace cuda_rms_norm
