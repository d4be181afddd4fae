// One thread block steps one block of 256 elements, a thread for each.
#include "device.hpp"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "chassis/launch_kernel.hpp"

namespace adamw8bit {
namespace {

using chassis::launch_kernel;

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// As nearest_dynamic_code.
__device__ int nearest(const float* code, float x) {
  int pivot = 127, above = 255, below = 0;
  for (int step = 64; step > 0; step /= 2) {
    if (x > code[pivot])
      below = pivot, pivot += step;
    else
      above = pivot, pivot -= step;
  }
  if (x > code[pivot]) return x > __fmul_rn(__fadd_rn(code[above], code[pivot]), 0.5f) ? above : pivot;
  return x < __fmul_rn(__fadd_rn(code[below], code[pivot]), 0.5f) ? below : pivot;
}

// The maximum over a thread block, returned to every thread; values are not negative.
__device__ float block_max(float x) {
  __shared__ float warps[kBlock / 32];
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  __syncthreads();  // all threads have read the previous maximum
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  float largest = 0;
  for (int i = 0; i < kBlock / 32; ++i) largest = fmaxf(largest, warps[i]);
  return largest;
}

__global__ void step_blocks_kernel(Rows rows, int64_t count, Coefficients k, bool is_bnb, const float* codes,
                                   const float* device_scale) {
  __shared__ float signed_code[256], unsigned_code[256];
  signed_code[threadIdx.x] = codes[threadIdx.x];
  unsigned_code[threadIdx.x] = codes[256 + threadIdx.x];
  __syncthreads();
  const int64_t block = blockIdx.x, i = block * kBlock + threadIdx.x;
  const bool inside = i < count;
  const float scale = device_scale == nullptr ? k.grad_scale : __fmul_rn(k.grad_scale, *device_scale);
  float m = 0, v = 0;
  if (inside) {
    const float grad = __fmul_rn(rows.grad[i], scale);
    m = __fmul_rn(signed_code[rows.average[i]], rows.average_absmax[block]);
    v = __fmul_rn(unsigned_code[rows.square[i]], rows.square_absmax[block]);
    m = __fadd_rn(__fmul_rn(m, k.beta1), __fmul_rn(k.one_minus_beta1, grad));
    v = __fadd_rn(__fmul_rn(v, k.beta2), __fmul_rn(__fmul_rn(k.one_minus_beta2, grad), grad));
    if (isfinite(v)) {
      const float before = rows.param[i];
      const float update = __fdiv_rn(__fmul_rn(k.minus_step_size, m), __fadd_rn(__fsqrt_rn(v), k.eps));
      rows.param[i] =
          is_bnb ? __fmul_rn(__fadd_rn(before, update), k.decay) : __fadd_rn(__fmul_rn(before, k.decay), update);
    } else {
      m = v = 0;
    }
  }
  const float m_largest = block_max(fabsf(m)), v_largest = block_max(v);
  if (threadIdx.x == 0) {
    rows.average_absmax[block] = m_largest;
    rows.square_absmax[block] = v_largest;
  }
  if (!inside) return;
  int code = nearest(signed_code, __fdiv_rn(m, m_largest > 0 ? m_largest : 1.0f));
  if (is_bnb && signbit(signed_code[code]) != signbit(m)) code += m > 0 ? 1 : -1;
  rows.average[i] = static_cast<uint8_t>(code);
  const int square = nearest(unsigned_code, __fdiv_rn(v, v_largest > 0 ? v_largest : 1.0f));
  rows.square[i] = static_cast<uint8_t>(v > 0 ? max(square, k.smallest_square) : square);
}

__global__ void step_fp32_kernel(float* p, const float* g, float* m, float* v, int64_t count, Fp32Coefficients k,
                                 const float* device_scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float scale = device_scale == nullptr ? k.grad_scale : __fmul_rn(k.grad_scale, *device_scale);
  const float grad = __fmul_rn(g[i], scale);
  const bool from_average = k.one_minus_beta1 < 0.5f;
  const float weight = from_average ? k.one_minus_beta1 : __fadd_rn(k.one_minus_beta1, -1.0f);
  m[i] = __fadd_rn(from_average ? m[i] : grad, __fmul_rn(weight, __fsub_rn(grad, m[i])));
  v[i] = __fadd_rn(__fmul_rn(v[i], k.beta2), __fmul_rn(__fmul_rn(k.one_minus_beta2, grad), grad));
  const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v[i]), k.sqrt_correction2), k.eps);
  p[i] = __fadd_rn(__fmul_rn(p[i], k.decay), __fdiv_rn(__fmul_rn(k.minus_step_size, m[i]), denominator));
}

__global__ void step_fp32_bnb_kernel(float* p, const float* g, float* m, float* v, int64_t count, Coefficients k,
                                     const float* device_scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float scale = device_scale == nullptr ? k.grad_scale : __fmul_rn(k.grad_scale, *device_scale);
  const float grad = __fmul_rn(g[i], scale);
  m[i] = __fadd_rn(__fmul_rn(m[i], k.beta1), __fmul_rn(k.one_minus_beta1, grad));
  v[i] = __fadd_rn(__fmul_rn(v[i], k.beta2), __fmul_rn(__fmul_rn(k.one_minus_beta2, grad), grad));
  const float update = __fdiv_rn(__fmul_rn(k.minus_step_size, m[i]), __fadd_rn(__fsqrt_rn(v[i]), k.eps));
  p[i] = __fmul_rn(__fadd_rn(p[i], update), k.decay);
}

unsigned int num_blocks(int64_t count) { return static_cast<unsigned int>((count + kBlock - 1) / kBlock); }

}  // namespace

CurrentDevice::CurrentDevice(int device) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ != device) check(cudaSetDevice(device), "cudaSetDevice");
}
CurrentDevice::~CurrentDevice() { cudaSetDevice(before_); }

DeviceCodes::~DeviceCodes() {
  for (float* table : tables_) cudaFree(table);
}

const float* DeviceCodes::on(int device, const float* values) {
  if (device < 0 || device >= kMaxDevices) throw std::runtime_error("the index of the device is above 63");
  float*& table = tables_[device];
  if (table != nullptr) return table;
  check(cudaMalloc(&table, 512 * sizeof(float)), "cudaMalloc");
  check(cudaMemcpy(table, values, 512 * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
  return table;
}

void step_blocks_on_device(const Rows& rows, int64_t count, const Coefficients& k, Order order, const float* codes,
                           const float* device_scale, void* stream) {
  launch_kernel(step_blocks_kernel, num_blocks(count), kBlock, static_cast<cudaStream_t>(stream), rows, count, k,
                order == Order::kBnb, codes, device_scale);
  check(cudaGetLastError(), "the step of 8-bit states");
}

void step_fp32_on_device(float* p, const float* g, float* m, float* v, int64_t count, const Fp32Coefficients& k,
                         const float* device_scale, void* stream) {
  launch_kernel(step_fp32_kernel, num_blocks(count), kBlock, static_cast<cudaStream_t>(stream), p, g, m, v, count, k,
                device_scale);
  check(cudaGetLastError(), "the step of fp32 states");
}

void step_fp32_bnb_on_device(float* p, const float* g, float* m, float* v, int64_t count, const Coefficients& k,
                             const float* device_scale, void* stream) {
  launch_kernel(step_fp32_bnb_kernel, num_blocks(count), kBlock, static_cast<cudaStream_t>(stream), p, g, m, v, count,
                k, device_scale);
  check(cudaGetLastError(), "the step of fp32 states");
}

}  // namespace adamw8bit
