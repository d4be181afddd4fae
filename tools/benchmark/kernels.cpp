// Measures our CUDA kernels: prints a line of JSON for each, with the bytes that it must read and write, and the
// seconds of its fastest round. tools/gpu-check compares them with the device's copy.
//   chassis-kernels [tiny]
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "chassis/dynamic_code.hpp"
#include "plugins/ops/cuda_rms_norm/kernels.hpp"
#include "plugins/optimizer/adamw8bit/device.hpp"
#include "plugins/quant/bnb4/device.hpp"

namespace {

int num_repeats = 20;

void check(const char* problem) {
  if (problem == nullptr) return;
  std::fprintf(stderr, "chassis-kernels: %s\n", problem);
  std::exit(1);
}
void check(cudaError_t error) { check(error == cudaSuccess ? nullptr : cudaGetErrorString(error)); }

// Memory of the device; every byte is `value`.
template <typename T>
class Array {
 public:
  Array(int64_t count, int value) {
    const std::vector<char> bytes(static_cast<size_t>(count) * sizeof(T), static_cast<char>(value));
    check(cudaMalloc(&data_, bytes.size()));
    check(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { cudaFree(data_); }
  operator T*() const { return data_; }

 private:
  T* data_ = nullptr;
};

// A copy to the host waits for all that was queued on the default stream before it.
void synchronize() {
  static const Array<int> one(1, 0);
  int here = 0;
  check(cudaMemcpy(&here, one, sizeof here, cudaMemcpyDeviceToHost));
}

template <typename Launch>
void measure(const char* kernel, double bytes, Launch&& launch) {
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < num_repeats; ++i) launch();
    synchronize();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / num_repeats);
  }
  std::printf("{\"kernel\": \"%s\", \"bytes\": %.0f, \"seconds\": %.9f}\n", kernel, bytes, best);
  std::fflush(stdout);
}

void measure_rms_norm(int64_t rows, int64_t n) {
  using namespace cuda_rms_norm;
  const Problem problem{0, nullptr, Dtype::kBF16, Dtype::kF32, rows, n, 1e-5f};
  const Array<uint16_t> x(rows * n, 0x3f), y(rows * n, 0x3f), dx(rows * n, 0);
  const Array<float> weight(n, 0x3f), inverse(rows, 0x3f), partial(num_partials(rows) * n, 0), dweight(n, 0);
  const double bytes = 2.0 * static_cast<double>(rows * n);
  measure("rms_norm forward, bf16", 2 * bytes, [&] { check(forward(problem, x, weight, y, inverse)); });
  measure("rms_norm backward of the input, bf16", 3 * bytes,
          [&] { check(backward_input(problem, x, weight, inverse, y, dx, false)); });
  measure("rms_norm backward of the weight, bf16", 2 * bytes,
          [&] { check(backward_weight(problem, x, inverse, y, partial, dweight, 0.0f)); });
}

void measure_bnb4(int64_t rows, int64_t columns) {
  using namespace bnb4;
  constexpr int64_t kBlock = 64;
  const int64_t n = rows * columns;
  const Array<uint8_t> codes(n / 2, 0x5a);
  const Array<float> map(16, 0x3f), absmax(n / kBlock, 0x3f);
  const Array<uint16_t> values(n, 0), x(kMaxDeviceRows * columns, 0x3f), y(kMaxDeviceRows * rows, 0);
  const DeviceStream on{0, nullptr};
  const DeviceWeight weight{codes, map, absmax, nullptr, nullptr, nullptr, nullptr, rows, columns, kBlock};
  const double stored = static_cast<double>(n) * (0.5 + 4.0 / kBlock);
  measure("bnb4 dequantize, bf16", stored + 2.0 * static_cast<double>(n),
          [&] { check(dequantize_on_device(on, weight, DeviceDtype::kBF16, values)); });
  if (!suits_device_rows(weight, x)) return;
  measure("bnb4 product of 1 row, bf16", stored,
          [&] { check(multiply_rows_on_device(on, weight, DeviceDtype::kBF16, 1, x, nullptr, y)); });
  measure("bnb4 product of 8 rows, bf16", stored,
          [&] { check(multiply_rows_on_device(on, weight, DeviceDtype::kBF16, kMaxDeviceRows, x, nullptr, y)); });
}

void measure_adamw(int64_t count) {
  using namespace adamw8bit;
  const Array<float> param(count, 0x3c), grad(count, 0x3c), average(count, 0), square(count, 0);
  const Array<float> average_absmax(count / kBlock + 1, 0), square_absmax(count / kBlock + 1, 0);
  const Array<uint8_t> average_codes(count, chassis::kDynamicSignedZero),
      square_codes(count, chassis::kDynamicUnsignedZero);
  const double elements = static_cast<double>(count);
  const Fp32Coefficients fp32{0.9999f, 0.1f, 0.999f, 0.001f, 0.03f, 1e-8f, -1e-3f, 1.0f};
  measure("adamw8bit, fp32 states", 28 * elements,
          [&] { step_fp32_on_device(param, grad, average, square, count, fp32, nullptr, nullptr); });
  std::vector<float> values(512);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i < 256 ? (static_cast<float>(i) - 127.5f) / 128.0f : static_cast<float>(i - 256) / 256.0f;
  DeviceCodes codes;
  const float* const table = codes.on(0, values.data());
  const Coefficients k{0.9f, 0.1f, 0.999f, 0.001f, 1e-8f, -1e-3f, 0.9999f, 1.0f, 0};
  const Rows rows{param, grad, average_codes, square_codes, average_absmax, square_absmax};
  measure("adamw8bit, 8-bit states", (16 + 16.0 / kBlock) * elements,
          [&] { step_blocks_on_device(rows, count, k, Order::kTorch, table, nullptr, nullptr); });
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_tiny = argc > 1 && std::strcmp(argv[1], "tiny") == 0;
  if (is_tiny) num_repeats = 1;
  measure_rms_norm(is_tiny ? 16 : 16384, is_tiny ? 256 : 4096);
  measure_bnb4(is_tiny ? 64 : 14336, is_tiny ? 256 : 4096);
  measure_adamw(is_tiny ? 4096 : 1 << 26);
}
