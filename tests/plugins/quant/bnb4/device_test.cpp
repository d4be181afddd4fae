// The kernels against the loops of the CPU; needs a GPU.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "plugins/quant/bnb4/device.hpp"
#include "plugins/quant/bnb4/loops.hpp"
#include "plugins/quant/bnb4/nested.hpp"
#include "tests/support/on_device.hpp"

namespace {

using namespace bnb4;
using chassis::test::OnDevice;

std::vector<float> random_values(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(count));
  for (float& v : out) v = normal(generator);
  return out;
}

// A quantized weight here and on the device.
struct Quantized {
  Quantized(Code code, int64_t rows, int64_t columns, int64_t block, bool is_nested)
      : rows(rows), columns(columns), block(block), is_nested(is_nested) {
    const int64_t n = rows * columns, blocks = (n + block - 1) / block;
    codes.resize(static_cast<size_t>((n + 1) / 2));
    absmax.resize(static_cast<size_t>(blocks));
    loops().quantize_f32(code, random_values(n, 1).data(), n, block, codes.data(), absmax.data());
    map.assign(values_of(code).begin(), values_of(code).end());
    if (!is_nested) return;
    offset = {mean(absmax.data(), blocks)};
    nested.resize(absmax.size());
    nested_absmax.resize(static_cast<size_t>((blocks + kNestedBlock - 1) / kNestedBlock));
    quantize_absmax(absmax.data(), blocks, kDynamicMap.data(), offset[0], nested.data(), nested_absmax.data());
    restore_absmax(nested.data(), nested_absmax.data(), kDynamicMap.data(), offset[0], 0, blocks, absmax.data());
  }

  int64_t rows, columns, block;
  bool is_nested;
  std::vector<uint8_t> codes, nested;
  std::vector<float> map, absmax, nested_absmax, offset;
};

struct QuantizedOnDevice {
  explicit QuantizedOnDevice(const Quantized& q)
      : codes(q.codes),
        nested(q.nested),
        map(q.map),
        absmax(q.absmax),
        nested_absmax(q.nested_absmax),
        nested_map(std::vector<float>(kDynamicMap.begin(), kDynamicMap.end())),
        offset(q.offset),
        weight{codes.data(),
               map.data(),
               q.is_nested ? nullptr : absmax.data(),
               q.is_nested ? nested.data() : nullptr,
               nested_absmax.data(),
               nested_map.data(),
               offset.data(),
               q.rows,
               q.columns,
               q.block} {}
  OnDevice<uint8_t> codes, nested;
  OnDevice<float> map, absmax, nested_absmax, nested_map, offset;
  DeviceWeight weight;
};

const DeviceStream kStream = {0, nullptr};

void dequantize_as_the_cpu(std::initializer_list<std::array<int64_t, 3>> shapes) {
  for (const bool is_nested : {false, true})
    for (const auto& [rows, columns, block] : shapes)
      for (const Code code : {Code::kNf4, Code::kFp4}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << columns << " in " << block << (is_nested ? " nested" : ""));
        const Quantized q(code, rows, columns, block, is_nested);
        const QuantizedOnDevice on(q);
        const int64_t n = rows * columns;
        std::vector<float> wide(static_cast<size_t>(n));
        std::vector<uint16_t> brain(wide.size()), half(wide.size());
        loops().dequantize_f32(q.map.data(), q.codes.data(), q.absmax.data(), n, block, wide.data());
        loops().dequantize_bf16(q.map.data(), q.codes.data(), q.absmax.data(), n, block, brain.data());
        loops().dequantize_f16(q.map.data(), q.codes.data(), q.absmax.data(), n, block, half.data());
        const OnDevice<float> wide_on(std::vector<float>(wide.size(), NAN));
        const std::vector<uint16_t> zeros(wide.size());
        const OnDevice<uint16_t> brain_on(zeros), half_on(zeros);
        ASSERT_EQ(dequantize_on_device(kStream, on.weight, DeviceDtype::kF32, wide_on.data()), nullptr);
        ASSERT_EQ(dequantize_on_device(kStream, on.weight, DeviceDtype::kBF16, brain_on.data()), nullptr);
        ASSERT_EQ(dequantize_on_device(kStream, on.weight, DeviceDtype::kF16, half_on.data()), nullptr);
        const std::vector<float> got = wide_on.read();
        EXPECT_EQ(std::memcmp(got.data(), wide.data(), wide.size() * 4), 0);
        EXPECT_EQ(brain_on.read(), brain);
        EXPECT_EQ(half_on.read(), half);
      }
}

TEST(Bnb4Gpu, DequantizesToTheBitsOfTheCpu) {
  dequantize_as_the_cpu({std::array<int64_t, 3>{7, 96, 64}, {33, 57, 32}, {1, 1, 64}, {3, 5000, 4096}});
}
TEST(Bnb4Gpu, DequantizesManyBlocks) { dequantize_as_the_cpu({std::array<int64_t, 3>{600, 1024, 64}}); }

void multiply_as_in_double(std::initializer_list<std::array<int64_t, 2>> shapes) {
  for (int64_t m = 1; m <= kMaxDeviceRows; ++m)
    for (const auto& [rows, columns] : shapes) {
      SCOPED_TRACE(testing::Message() << m << " rows, " << rows << " x " << columns);
      const Quantized q(Code::kNf4, rows, columns, 64, m % 2 == 0);
      const QuantizedOnDevice on(q);
      std::vector<float> w(static_cast<size_t>(rows * columns));
      loops().dequantize_f32(q.map.data(), q.codes.data(), q.absmax.data(), rows * columns, 64, w.data());
      const std::vector<float> x = random_values(m * columns, 2), bias = random_values(rows, 3);
      const OnDevice<float> x_on(x), bias_on(bias), y_on(std::vector<float>(static_cast<size_t>(m * rows), NAN));
      ASSERT_TRUE(suits_device_rows(on.weight, x_on.data()));
      ASSERT_EQ(
          multiply_rows_on_device(kStream, on.weight, DeviceDtype::kF32, m, x_on.data(), bias_on.data(), y_on.data()),
          nullptr);
      const std::vector<float> y = y_on.read();
      for (int64_t r = 0; r < m; ++r)
        for (int64_t n = 0; n < rows; ++n) {
          double sum = bias[static_cast<size_t>(n)], terms = 1;
          for (int64_t k = 0; k < columns; ++k) {
            const auto at = static_cast<size_t>(r * columns + k), of = static_cast<size_t>(n * columns + k);
            const double term = static_cast<double>(x[at]) * static_cast<double>(w[of]);
            sum += term, terms += std::abs(term);
          }
          ASSERT_NEAR(y[static_cast<size_t>(r * rows + n)], sum, terms * 0x1p-20);
        }
    }
}

TEST(Bnb4Gpu, MultipliesFewRows) { multiply_as_in_double({std::array<int64_t, 2>{33, 896}, {5, 8}}); }
TEST(Bnb4Gpu, MultipliesManyColumns) { multiply_as_in_double({std::array<int64_t, 2>{16, 14336}}); }

}  // namespace
