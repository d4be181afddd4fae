// The sums of all routers travel as one array.
#include "host/train/router_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "chassis/comm.h"
#include "chassis/router_sums.hpp"
#include "host/base/log.hpp"
#include "host/graph/output_names.hpp"

namespace chassis {
namespace {

double total(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

bool is_router_sums(const std::pair<const std::string, ValueId>& output) {
  return output.first.starts_with(kRouterSumsOutput);
}

}  // namespace

bool has_routers(const Program& program) {
  return std::ranges::any_of(program.blocks,
                             [](const BlockType& block) { return std::ranges::any_of(block.outputs, is_router_sums); });
}

// The softmax of a token sums to 1; rounding is removed.
double RouterSums::num_tokens() const { return std::round(total(probabilities)); }

double RouterSums::max_load() const {
  const double all = total(counts);
  return all > 0 ? *std::ranges::max_element(counts) * static_cast<double>(counts.size()) / all : 0.0;
}

double RouterSums::num_idle() const { return static_cast<double>(std::ranges::count(counts, 0.0)); }

double RouterSums::entropy() const {
  const double all = total(probabilities);
  double sum = 0.0;
  for (const double value : probabilities)
    if (value > 0) sum -= value / all * std::log(value / all);
  return sum;
}

double RouterSums::aux() const {
  const double tokens = num_tokens();
  if (tokens == 0) return 0.0;
  return static_cast<double>(counts.size()) *
         std::inner_product(counts.begin(), counts.end(), probabilities.begin(), 0.0) / (tokens * tokens);
}

RouterMetrics::RouterMetrics(const Program& program) {
  const std::vector<std::string> names = program.unit_names();
  size_t unit = 0;
  for (const Chain& chain : program.chains)
    for (const uint32_t type : chain.blocks) {
      const BlockType& block = program.blocks[type];
      for (const auto& entry : block.outputs) {
        if (!is_router_sums(entry)) continue;
        const auto& [output, value] = entry;
        const int64_t num_experts = RouterSumsPlaces::in(program.dims[block.values[value].dims[1]].size).num_experts;
        routers_.push_back({unit, output, names[unit] + output.substr(std::string_view(kRouterSumsOutput).size()),
                            num_experts, std::vector<int64_t>(static_cast<size_t>(num_experts))});
      }
      ++unit;
    }
}

bool RouterMetrics::is_due(int64_t step, int64_t every_steps) {
  if (std::exchange(is_first_, false))
    for (Router& router : routers_) std::ranges::fill(router.last_used, step - 1);
  return !routers_.empty() && (step == 1 || step % every_steps == 0);
}

NamedValues RouterMetrics::take(Executor& executor, const Ranks& ranks, int64_t step) {
  if (routers_.empty()) return {};
  // The sums of a router before its squares, which have no metric.
  std::vector<std::ptrdiff_t> begins;
  std::ptrdiff_t size = 0;
  for (const Router& router : routers_)
    begins.push_back(std::exchange(size, size + RouterSumsPlaces{router.num_experts}.squares()));
  std::vector<double> sums(static_cast<size_t>(size)),
      largest(routers_.size(), -std::numeric_limits<double>::infinity());
  const std::vector<RouterLoad> loads = executor.take_router_loads();
  for (size_t r = 0; r < routers_.size(); ++r)
    for (const RouterLoad& load : loads) {
      if (load.unit != routers_[r].unit || load.output != routers_[r].output) continue;
      largest[r] = load.largest;
      if (!load.sums.empty())
        std::copy_n(load.sums.begin(), RouterSumsPlaces{routers_[r].num_experts}.squares(), sums.begin() + begins[r]);
    }
  ranks.reduce(sums, CHASSIS_REDUCE_SUM, "loads of experts");
  ranks.reduce(largest, CHASSIS_REDUCE_MAX, "logits of routers");

  NamedValues values;
  for (size_t r = 0; r < routers_.size(); ++r) {
    Router& router = routers_[r];
    const RouterSumsPlaces places{router.num_experts};
    const auto part = [&](int64_t place) {
      const auto begin = sums.begin() + begins[r] + place;
      return std::vector<double>(begin, begin + places.num_experts);
    };
    RouterSums all;
    all.counts = part(places.counts());
    all.probabilities = part(places.probabilities());
    all.largest = largest[r];
    if (!(all.num_tokens() > 0)) continue;  // nor NaN
    const auto add = [&](const char* what, double value) {
      values.emplace_back(fmt::format("router/{}/{}", router.name, what), value);
    };
    add("max_load", all.max_load());
    add("idle_experts", all.num_idle());
    add("entropy", all.entropy());
    add("max_logit", all.largest);
    add("aux", all.aux());
    warn(router, all, step);
  }
  return values;
}

void RouterMetrics::warn(Router& router, const RouterSums& sums, int64_t step) const {
  if (const double load = sums.max_load(); load > kMostLoad)
    counted_warning(
        "uneven loads of experts",
        fmt::format("step {}: an expert of {} has {:.1f} times the mean load; above {:g} the loads count as "
                    "uneven, and model.router_aux_weight balances them",
                    step, router.name, load, kMostLoad));
  uint64_t num_idle = 0;
  for (size_t e = 0; e < sums.counts.size(); ++e) {
    int64_t& last = router.last_used[e];
    if (sums.counts[e] > 0) last = step;
    if (step - last < kMostIdleSteps) continue;
    last = step;  // counted again after as many steps
    ++num_idle;
  }
  if (num_idle > 0)
    counted_warning("experts without a token",
                    fmt::format("step {}: {} of {} experts of {} had no token for {} steps", step, num_idle,
                                sums.counts.size(), router.name, kMostIdleSteps),
                    num_idle);
}

}  // namespace chassis
