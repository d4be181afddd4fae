// Divisions of units into stages, by dynamic programming over the number of stages and of units.
#include "host/state/stage_division.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "host/base/error.hpp"

namespace chassis {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

// The smallest possible cost of the costliest stage. `sums` are the prefix sums of the units' costs, from 0.
double least_limit(const std::vector<double>& sums, size_t num_stages) {
  const size_t num_units = sums.size() - 1;
  std::vector<double> best(sums.begin(), sums.end());  // for the stages so far, by number of units
  for (size_t stage = 2; stage <= num_stages; ++stage) {
    std::vector<double> next(num_units + 1, kImpossible);
    // A later begin makes the stages before it costlier and the last one cheaper. The minimum is where they cross, and
    // this point only moves forward.
    size_t begin = stage - 1;
    const auto cost = [&](size_t at, size_t end) { return std::max(best[at], sums[end] - sums[at]); };
    for (size_t end = stage; end <= num_units; ++end) {
      while (begin + 1 < end && best[begin] < sums[end] - sums[begin]) ++begin;
      next[end] = cost(begin, end);
      if (begin > stage - 1) next[end] = std::min(next[end], cost(begin - 1, end));
    }
    best = std::move(next);
  }
  return best.back();
}

// The division with the smallest sum of squares, of those without a stage above the limit.
std::vector<UnitRange> most_even(const std::vector<double>& sums, size_t num_stages, double limit) {
  const size_t num_units = sums.size() - 1;
  std::vector<double> best(num_units + 1, kImpossible);  // for the stages so far, by number of units
  best[0] = 0.0;
  std::vector<std::vector<size_t>> begins;  // begin of the last stage, by number of stages and of units
  for (size_t stage = 1; stage <= num_stages; ++stage) {
    std::vector<double> next(num_units + 1, kImpossible);
    std::vector<size_t>& begin_of = begins.emplace_back(num_units + 1);
    size_t first = stage - 1;
    for (size_t end = stage; end <= num_units; ++end) {
      while (first < end && sums[end] - sums[first] > limit) ++first;
      for (size_t begin = first; begin < end; ++begin) {
        const double cost = sums[end] - sums[begin], value = best[begin] + cost * cost;
        if (value >= next[end]) continue;
        next[end] = value;
        begin_of[end] = begin;
      }
    }
    best = std::move(next);
  }
  std::vector<UnitRange> out(num_stages);
  size_t end = num_units;
  for (size_t stage = num_stages; stage-- > 0;) {
    out[stage] = {begins[stage][end], end};
    end = begins[stage][end];
  }
  return out;
}

}  // namespace

std::vector<UnitRange> balanced_division(std::span<const double> costs, int num_stages) {
  CHASSIS_CHECK(num_stages > 0, "a pipeline without stages");
  if (costs.size() < static_cast<size_t>(num_stages))
    throw config_error("the pipeline has " + std::to_string(num_stages) + " stages, the model has only " +
                       std::to_string(costs.size()) + " units to divide")
        .hint("lower mesh.pp, or the number of chunks that the schedule gives each rank");
  std::vector<double> sums = {0.0};  // prefix sums of the costs
  for (const double cost : costs) {
    CHASSIS_CHECK(std::isfinite(cost) && cost >= 0.0, "the cost of a unit is negative or not finite");
    sums.push_back(sums.back() + cost);
  }
  return most_even(sums, static_cast<size_t>(num_stages), least_limit(sums, static_cast<size_t>(num_stages)));
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
