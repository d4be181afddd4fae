// Divisions of units into stages, by dynamic programming over the number of stages and of units.
#include "host/state/stage_division.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "host/base/error.hpp"

namespace chassis {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

// Minimizes the combination of the stages' costs over all divisions.
class Division {
 public:
  using RangeCost = std::function<double(size_t begin, size_t end)>;
  using Combine = double (*)(double, double);

  Division(size_t num_units, size_t num_stages, const RangeCost& cost, Combine combine) : num_units_(num_units) {
    best_.assign(num_stages + 1, std::vector<double>(num_units + 1, kImpossible));
    begin_.assign(num_stages + 1, std::vector<size_t>(num_units + 1));
    best_[0][0] = 0.0;
    for (size_t stage = 1; stage <= num_stages; ++stage)
      for (size_t end = stage; end <= num_units; ++end)
        for (size_t begin = stage - 1; begin < end; ++begin) {
          if (best_[stage - 1][begin] == kImpossible) continue;
          const double value = combine(best_[stage - 1][begin], cost(begin, end));
          if (value >= best_[stage][end]) continue;
          best_[stage][end] = value;
          begin_[stage][end] = begin;
        }
  }

  double value() const { return best_.back().back(); }
  std::vector<UnitRange> ranges() const {
    std::vector<UnitRange> out(best_.size() - 1);
    size_t end = num_units_;
    for (size_t stage = out.size(); stage > 0; --stage) {
      out[stage - 1] = {begin_[stage][end], end};
      end = begin_[stage][end];
    }
    return out;
  }

 private:
  size_t num_units_;
  std::vector<std::vector<double>> best_;   // by number of stages and of units
  std::vector<std::vector<size_t>> begin_;  // where the last of these stages begins
};

}  // namespace

std::vector<UnitRange> balanced_division(std::span<const double> costs, int num_stages) {
  CHASSIS_CHECK(num_stages > 0, "a pipeline without stages");
  if (costs.size() < static_cast<size_t>(num_stages))
    throw config_error("the pipeline has " + std::to_string(num_stages) + " stages, the model has only " +
                       std::to_string(costs.size()) + " units to divide");
  std::vector<double> sums = {0.0};  // of the units before each
  for (const double cost : costs) {
    CHASSIS_CHECK(std::isfinite(cost) && cost >= 0.0, "the cost of a unit is negative or not finite");
    sums.push_back(sums.back() + cost);
  }
  const auto sum = [&](size_t begin, size_t end) { return sums[end] - sums[begin]; };
  const auto larger = [](double a, double b) { return std::max(a, b); };
  const auto added = [](double a, double b) { return a + b; };
  const double limit = Division(costs.size(), static_cast<size_t>(num_stages), sum, larger).value();
  const auto square = [&](size_t begin, size_t end) {
    const double cost = sum(begin, end);
    return cost <= limit ? cost * cost : kImpossible;
  };
  return Division(costs.size(), static_cast<size_t>(num_stages), square, added).ranges();
}

std::vector<UnitRange> given_division(std::span<const int64_t> layers_per_stage, int num_stages, size_t num_units,
                                      UnitRange layers) {
  CHASSIS_CHECK(layers.begin <= layers.end && layers.end <= num_units, "layers outside the units");
  if (layers_per_stage.size() != static_cast<size_t>(num_stages))
    throw config_error("layers_per_stage has " + std::to_string(layers_per_stage.size()) +
                       " numbers, the pipeline has " + std::to_string(num_stages) + " stages");
  int64_t sum = 0;
  for (size_t stage = 0; stage < layers_per_stage.size(); ++stage) {
    const int64_t count = layers_per_stage[stage];
    if (count < 0 || __builtin_add_overflow(sum, count, &sum))
      throw config_error("layers_per_stage[" + std::to_string(stage) + "] is " + std::to_string(count) +
                         "; the model has " + std::to_string(layers.size()) + " layers");
  }
  if (sum != static_cast<int64_t>(layers.size()))
    throw config_error("layers_per_stage adds up to " + std::to_string(sum) + " layers, the model has " +
                       std::to_string(layers.size()));
  std::vector<UnitRange> out;
  size_t begin = layers.begin;
  for (const int64_t count : layers_per_stage) {
    out.push_back({begin, begin + static_cast<size_t>(count)});
    begin = out.back().end;
  }
  out.front().begin = 0;
  out.back().end = num_units;
  for (size_t stage = 0; stage < out.size(); ++stage)
    if (out[stage].size() == 0)
      throw config_error("layers_per_stage[" + std::to_string(stage) + "] is 0, so that stage " +
                         std::to_string(stage) + " of " + std::to_string(num_stages) + " has no unit");
  return out;
}

}  // namespace chassis
