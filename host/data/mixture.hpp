// Chooses the data set of the next row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace chassis {

// Takes the set that is furthest below its share, so that every set is always within a few rows of its share. The seed
// only changes which set begins. The only state is the number of rows taken from each set, which the caller keeps.
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
