// The values of metrics over the steps of a run, in bounded memory: neighbouring steps are combined as a run grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

// One metric. Arrays are indexed by bucket; a bucket without a finite value is NaN.
struct Series {
  std::string name;
  std::vector<float> min, max, mean;
  std::vector<uint32_t> count;  // number of finite values
  uint64_t num_not_finite = 0;
  double first = std::numeric_limits<double>::quiet_NaN(), last = first;  // finite values
  double lowest = first, highest = first;
  int64_t lowest_step = 0, highest_step = 0;

  // Exponential moving average of the means, over about a fiftieth of the buckets, without the bias of its start
  // (Kingma and Ba, Adam, §3: divided by 1 − βᵗ).
  std::vector<float> smoothed() const;
};

class History {
 public:
  static constexpr size_t kMaxBuckets = 2048;
  static constexpr size_t kMaxSeries = 1024;  // a model with a hundred layers of experts has half of them

  // Begins the step of the values that follow. Steps usually ascend; a step may have any number of values. Steps below
  // 1 are ignored; returns false for those.
  bool begin_step(int64_t step);
  // `position` is the value's position in its line: lines usually have the same names in the same order. A value with a
  // new name is dropped and counted once there are kMaxSeries names.
  void set(size_t position, std::string_view name, double value);

  // Bucket b holds the steps from b · width() + 1 to (b + 1) · width().
  int64_t width() const { return width_; }
  size_t num_buckets() const { return num_buckets_; }
  int64_t last_step() const { return last_step_; }
  uint64_t num_steps() const { return num_steps_; }
  // In order of first use. References stay valid.
  const std::deque<Series>& series() const { return series_; }
  const Series* find(std::string_view name) const;
  // The mean of the finite values of the last buckets of the run; NaN if there are none.
  double recent_mean(std::string_view name, size_t num_buckets) const;
  uint64_t num_dropped() const { return num_dropped_; }

 private:
  Series* slot(size_t position, std::string_view name);
  void halve();

  std::deque<Series> series_;
  std::vector<Series*> by_position_;
  int64_t width_ = 1, last_step_ = 0, step_ = 0;
  size_t num_buckets_ = 0, bucket_ = 0;
  uint64_t num_steps_ = 0, num_dropped_ = 0;
};

}  // namespace chassis
