// Which data set the next row comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace chassis {

// Takes the set that is furthest behind its share, so that at every moment each set is within a few rows of it.
// The seed only shifts who begins. There is no state but the number of rows taken from each set.
class Mixture {
 public:
  // Shares are positive; only their ratios matter.
  Mixture(std::span<const double> shares, uint64_t seed);
  size_t next(std::span<const uint64_t> rows_taken) const;
  // Sums to 1.
  const std::vector<double>& shares() const { return shares_; }

 private:
  std::vector<double> shares_, phases_;
};

}  // namespace chassis
