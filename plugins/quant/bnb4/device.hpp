// Weights in 4 bits on CUDA. These functions only launch kernels and return before the work is done: NULL, or CUDA's
// error text. Values have the same bits as on the CPU.
#pragma once

#include <cstdint>

namespace bnb4 {

enum class DeviceDtype { kF32, kF16, kBF16 };

// Pointers to the device.
struct DeviceWeight {
  const uint8_t* codes;
  const float* map;       // 16
  const float* absmax;    // NULL if nested
  const uint8_t* nested;  // codes of absmax
  const float *nested_absmax, *nested_map, *offset;
  int64_t rows, columns, block;
  int64_t first = 0, row_blocks = 0, skipped = 0;  // as WeightShape
};

struct DeviceStream {
  int device;
  void* stream;
};

const char* dequantize_on_device(const DeviceStream& on, const DeviceWeight& weight, DeviceDtype dtype, void* values);

// y[m, rows] = x[m, columns] · Wᵀ + bias, for 1 ≤ m ≤ kMaxDeviceRows, if suits_device_rows(). Values of the weight are
// not rounded to the dtype. bias may be NULL.
constexpr int64_t kMaxDeviceRows = 8;
bool suits_device_rows(const DeviceWeight& weight, const void* x);
const char* multiply_rows_on_device(const DeviceStream& on, const DeviceWeight& weight, DeviceDtype dtype, int64_t m,
                                    const void* x, const void* bias, void* y);

}  // namespace bnb4
