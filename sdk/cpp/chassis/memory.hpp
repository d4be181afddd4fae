// Scratch memory that its destructor releases.
#pragma once

#include <span>
#include <type_traits>

#include "chassis/host.hpp"

CHASSIS_SDK_BEGIN

// [step] Uninitialised, 64-byte aligned, counted as workspace of this plugin. Throws RESOURCE_EXHAUSTED.
template <typename T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Scratch(const Host& host, int64_t count) : memory_(host.service<chassis_memory_t>()), count_(count) {
    void* data = nullptr;
    host.check(memory_.alloc(&memory_, static_cast<uint64_t>(count) * sizeof(T), &data));
    data_ = static_cast<T*>(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { memory_.free(&memory_, data_); }

  T* data() const noexcept { return data_; }
  T& operator[](int64_t i) const noexcept { return data_[i]; }
  std::span<T> span() const noexcept { return {data_, static_cast<size_t>(count_)}; }

 private:
  const chassis_memory_t& memory_;
  int64_t count_;
  T* data_ = nullptr;
};

// As Scratch, on any device, or in page-locked host memory for the device (CHASSIS_MEMORY_PINNED).
class DeviceScratch {
 public:
  DeviceScratch(const Host& host, uint32_t device_type, int32_t device_index, uint64_t bytes, uint32_t flags = 0)
      : memory_(host.service<chassis_memory_t>()) {
    host.check(memory_.alloc_on(&memory_, device_type, device_index, flags, bytes, &data_));
  }
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;
  ~DeviceScratch() { memory_.free_on(&memory_, data_); }

  void* data() const noexcept { return data_; }

 private:
  const chassis_memory_t& memory_;
  void* data_ = nullptr;
};

CHASSIS_SDK_END
