// Neighbours are averaged; heights are between the least and the greatest average.
#include "host/report/sparkline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace chassis {

std::string sparkline(std::span<const float> values, size_t width, bool unicode) {
  constexpr const char* kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t size = std::min(width, values.size());
  std::vector<double> means(size, std::numeric_limits<double>::quiet_NaN());
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (size_t i = 0; i < size; ++i) {
    double sum = 0.0;
    int num = 0;
    for (size_t k = i * values.size() / size; k < (i + 1) * values.size() / size; ++k)
      if (std::isfinite(values[k])) sum += values[k], ++num;
    if (num == 0) continue;
    means[i] = sum / num;
    low = std::min(low, means[i]), high = std::max(high, means[i]);
  }
  std::string text;
  for (const double mean : means) {
    if (std::isnan(mean)) {
      text += ' ';
      continue;
    }
    const double height = high > low ? (mean - low) / (high - low) : 0.0;
    const auto index = static_cast<size_t>(std::lround(7.0 * height));
    text += unicode ? kHeights[index] : std::to_string(index);
  }
  return text;
}

}  // namespace chassis
