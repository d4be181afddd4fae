// Takes the set with the largest deficit.
#include "host/data/mixture.hpp"

#include <cmath>
#include <numeric>

#include "host/base/error.hpp"
#include "host/data/permutation.hpp"

namespace chassis {

Mixture::Mixture(std::span<const double> shares, uint64_t seed) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double share : shares) {
    CHASSIS_CHECK(share > 0 && std::isfinite(share), "shares are positive");
    shares_.push_back(share / sum);
    phases_.push_back(static_cast<double>(mix64(mix64(seed) ^ phases_.size()) >> 11) * 0x1p-53);
  }
}

size_t Mixture::next(std::span<const uint64_t> rows_taken) const {
  CHASSIS_CHECK(rows_taken.size() == shares_.size(), "one count per data set");
  const double row = static_cast<double>(std::accumulate(rows_taken.begin(), rows_taken.end(), uint64_t{1}));
  size_t best = 0;
  double largest = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const double deficit = shares_[i] * row + phases_[i] - static_cast<double>(rows_taken[i]);
    if (i == 0 || deficit > largest) {
      best = i;
      largest = deficit;
    }
  }
  return best;
}

}  // namespace chassis
