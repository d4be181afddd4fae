// A bucket holds the sum of its values as mean · count. When all buckets are used, each pair is merged into one.
#include "host/report/history.hpp"

#include <algorithm>
#include <cmath>

namespace chassis {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

void resize(Series& series, size_t size) {
  for (std::vector<float>* values : {&series.min, &series.max, &series.mean}) values->resize(size, kNone);
  series.count.resize(size, 0);
}

// Combines buckets `a` and `b` into bucket `to`; b is the later one.
void combine(Series& series, size_t to, size_t a, size_t b) {
  const uint32_t num_a = series.count[a], num_b = series.count[b], num = num_a + num_b;
  if (num > 0) {
    const double sum = (num_a ? static_cast<double>(series.mean[a]) * num_a : 0.0) +
                       (num_b ? static_cast<double>(series.mean[b]) * num_b : 0.0);
    series.mean[to] = static_cast<float>(sum / num);
    series.min[to] = std::fmin(series.min[a], series.min[b]);
    series.max[to] = std::fmax(series.max[a], series.max[b]);
  } else {
    series.mean[to] = series.min[to] = series.max[to] = kNone;
  }
  series.count[to] = num;
}

}  // namespace

double History::recent_mean(std::string_view name, size_t num_buckets) const {
  const Series* const series = find(name);
  double sum = 0.0, num = 0.0;
  for (size_t i = num_buckets_ > num_buckets ? num_buckets_ - num_buckets : 0; series && i < series->mean.size(); ++i) {
    if (series->count[i] == 0) continue;
    sum += static_cast<double>(series->mean[i]) * series->count[i];
    num += series->count[i];
  }
  return num > 0.0 ? sum / num : std::numeric_limits<double>::quiet_NaN();
}

std::vector<float> Series::smoothed() const {
  constexpr double kLeastWindow = 4.0, kParts = 50.0;  // in buckets; windows in a run
  const double decay = 1.0 - 1.0 / std::max(kLeastWindow, static_cast<double>(mean.size()) / kParts);
  double average = 0.0, weight = 0.0;
  std::vector<float> values(mean.size(), kNone);
  for (size_t i = 0; i < mean.size(); ++i) {
    if (count[i] == 0) continue;
    average = decay * average + (1.0 - decay) * static_cast<double>(mean[i]);
    weight = decay * weight + (1.0 - decay);
    values[i] = static_cast<float>(average / weight);
  }
  return values;
}

bool History::begin_step(int64_t step) {
  step_ = step;
  if (step < 1) return false;
  while (static_cast<size_t>((step - 1) / width_) >= kMaxBuckets) halve();
  bucket_ = static_cast<size_t>((step - 1) / width_);
  num_buckets_ = std::max(num_buckets_, bucket_ + 1);
  last_step_ = std::max(last_step_, step);
  ++num_steps_;
  return true;
}

void History::set(size_t position, std::string_view name, double value) {
  if (step_ < 1) return;
  Series* const series = slot(position, name);
  if (!series) {
    ++num_dropped_;
    return;
  }
  if (!std::isfinite(value)) {
    ++series->num_not_finite;
    return;
  }
  if (series->mean.size() <= bucket_) resize(*series, bucket_ + 1);
  const auto rounded = static_cast<float>(value);
  uint32_t& count = series->count[bucket_];
  float &mean = series->mean[bucket_], &min = series->min[bucket_], &max = series->max[bucket_];
  mean = count == 0 ? rounded : mean + (rounded - mean) / static_cast<float>(count + 1);
  min = count == 0 ? rounded : std::min(min, rounded);
  max = count == 0 ? rounded : std::max(max, rounded);
  ++count;
  if (std::isnan(series->first)) series->first = value;
  series->last = value;
  if (!(series->lowest <= value)) series->lowest = value, series->lowest_step = step_;
  if (!(series->highest >= value)) series->highest = value, series->highest_step = step_;
}

const Series* History::find(std::string_view name) const {
  const auto found = std::find_if(series_.begin(), series_.end(), [&](const Series& s) { return s.name == name; });
  return found == series_.end() ? nullptr : &*found;
}

Series* History::slot(size_t position, std::string_view name) {
  if (position < by_position_.size() && by_position_[position] && by_position_[position]->name == name)
    return by_position_[position];
  auto found = std::find_if(series_.begin(), series_.end(), [&](const Series& s) { return s.name == name; });
  if (found == series_.end()) {
    if (series_.size() >= kMaxSeries) return nullptr;
    series_.emplace_back().name = name;
    found = std::prev(series_.end());
  }
  if (position < kMaxSeries) {
    by_position_.resize(std::max(by_position_.size(), position + 1), nullptr);
    by_position_[position] = &*found;
  }
  return &*found;
}

void History::halve() {
  for (Series& series : series_) {
    resize(series, (series.mean.size() + 1) / 2 * 2);
    const size_t half = series.mean.size() / 2;
    for (size_t i = 0; i < half; ++i) combine(series, i, 2 * i, 2 * i + 1);
    resize(series, half);
  }
  width_ *= 2;
  num_buckets_ = (num_buckets_ + 1) / 2;
}

}  // namespace chassis
