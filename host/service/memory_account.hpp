// Counters of live and peak bytes by category and by owner, for the CPU's allocator and for meta tensors. Lock-free and
// shared by all threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "host/service/memory_usage.hpp"
#include "host/service/tensor_device.hpp"

namespace chassis {

inline constexpr size_t kMaxMemoryOwners = 256;

// The label of this thread's innermost MemoryTag.
MemoryLabel current_memory_label();

class MemoryGauge {
 public:
  int64_t add(int64_t bytes) {
    const int64_t now = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t seen = peak_.load(std::memory_order_relaxed);
    while (now > seen && !peak_.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
    return now;
  }
  void restart() { peak_.store(live_.load(std::memory_order_relaxed), std::memory_order_relaxed); }
  uint64_t live() const { return bytes(live_); }
  uint64_t peak() const { return bytes(peak_); }

 private:
  static uint64_t bytes(const std::atomic<int64_t>& value) {
    return static_cast<uint64_t>(std::max<int64_t>(0, value.load(std::memory_order_relaxed)));
  }
  std::atomic<int64_t> live_{0}, peak_{0};
};

class MemoryAccount {
 public:
  // `bytes` is negative when memory is freed.
  void add(int64_t bytes, MemoryLabel label) {
    categories_[label.category].add(bytes);
    owners_[label.owner].add(bytes);
    const auto peak = static_cast<int64_t>(total_.peak());
    if (total_.add(bytes) <= peak) return;
    for (size_t i = 0; i < categories_.size(); ++i) at_peak_[i].store(categories_[i].live(), std::memory_order_relaxed);
  }
  void restart_peaks() {
    for (MemoryGauge& gauge : categories_) gauge.restart();
    for (MemoryGauge& gauge : owners_) gauge.restart();
    total_.restart();
    for (size_t i = 0; i < categories_.size(); ++i) at_peak_[i] = categories_[i].live();
  }

  uint64_t live() const { return total_.live(); }
  uint64_t peak() const { return total_.peak(); }
  const MemoryGauge& category(size_t index) const { return categories_[index]; }
  const MemoryGauge& owner(size_t index) const { return owners_[index]; }
  // Leaves out cached_bytes and the system's bytes.
  MemoryUsage usage() const {
    MemoryUsage usage;
    for (size_t i = 0; i < categories_.size(); ++i)
      usage.categories[i] = {categories_[i].live(), categories_[i].peak(), at_peak_[i]};
    usage.live_bytes = total_.live();
    usage.peak_bytes = total_.peak();
    return usage;
  }

 private:
  std::array<MemoryGauge, kNumMemoryCategories> categories_;
  std::array<std::atomic<uint64_t>, kNumMemoryCategories> at_peak_{};
  std::array<MemoryGauge, kMaxMemoryOwners> owners_;
  MemoryGauge total_;
};

// The accounts of the process, and of a device of meta_memory.hpp.
MemoryAccount& memory_account();
MemoryAccount& meta_memory_account(Device device);

}  // namespace chassis
