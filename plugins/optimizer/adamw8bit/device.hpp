// The steps on CUDA. They give the bits of the CPU: every operation rounds as IEEE 754 says.
#pragma once

#include <cstdint>

#include "rows.hpp"

namespace adamw8bit {

// As AdamWCoefficients of chassis/adamw.hpp.
struct Fp32Coefficients {
  float decay, one_minus_beta1, beta2, one_minus_beta2, sqrt_correction2, eps, minus_step_size, grad_scale;
};

// Makes a device current for this thread while it exists. Throws std::runtime_error if there is no such device.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();

 private:
  int before_ = 0;
};

// One copy of both code tables on each device.
class DeviceCodes {
 public:
  DeviceCodes() = default;
  DeviceCodes(const DeviceCodes&) = delete;
  DeviceCodes& operator=(const DeviceCodes&) = delete;
  ~DeviceCodes();
  // The 512 values, signed ones first, on this device, which is current; copied at the first call. Throws
  // std::runtime_error.
  const float* on(int device, const float* values);

 private:
  static constexpr int kMaxDevices = 64;
  float* tables_[kMaxDevices] = {};
};

// Queue a step of `count` elements on the stream, whose device is current; `device_scale` is another factor of the
// gradients, or NULL. Throw std::runtime_error if CUDA refuses the launch.
void step_blocks_on_device(const Rows& rows, int64_t count, const Coefficients& k, Order order, const float* codes,
                           const float* device_scale, void* stream);
void step_fp32_on_device(float* p, const float* g, float* m, float* v, int64_t count, const Fp32Coefficients& k,
                         const float* device_scale, void* stream);
void step_fp32_bnb_on_device(float* p, const float* g, float* m, float* v, int64_t count, const Coefficients& k,
                             const float* device_scale, void* stream);

}  // namespace adamw8bit
