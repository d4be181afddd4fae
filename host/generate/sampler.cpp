// Order of transformers' GenerationMixin: repetition penalty; then, when sampling, temperature, top_k, top_p, min_p.
// Each of the last three looks at the distribution over the tokens that the previous ones have left.
#include "host/generate/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "host/base/error.hpp"

namespace chassis {
namespace {

void penalize(std::vector<float>& logits, double penalty, std::span<const int32_t> seen) {
  if (penalty == 1.0) return;
  std::vector<bool> done(logits.size());
  for (const int32_t id : seen) {
    const auto at = static_cast<size_t>(id);
    if (at >= logits.size() || done[at]) continue;  // ids beyond the vocabulary were masked
    done[at] = true;
    const double logit = logits[at];
    logits[at] = static_cast<float>(logit < 0.0 ? logit * penalty : logit / penalty);
  }
}

double sum_of(const std::vector<TokenWeight>& all) {
  double sum = 0.0;
  for (const TokenWeight& one : all) sum += one.weight;
  return sum;
}

void keep_top_k(std::vector<TokenWeight>& all, int64_t top_k) {
  const auto k = static_cast<size_t>(top_k);
  if (top_k <= 0 || k >= all.size()) return;
  std::vector<double> weights;
  for (const TokenWeight& one : all) weights.push_back(one.weight);
  std::nth_element(weights.begin(), weights.begin() + static_cast<ptrdiff_t>(k - 1), weights.end(), std::greater<>());
  const double least = weights[k - 1];
  std::erase_if(all, [&](const TokenWeight& one) { return one.weight < least; });
}

void keep_top_p(std::vector<TokenWeight>& all, double top_p) {
  if (top_p >= 1.0) return;
  std::stable_sort(all.begin(), all.end(),
                   [](const TokenWeight& a, const TokenWeight& b) { return a.weight > b.weight; });
  const double enough = top_p * sum_of(all);
  size_t count = 0;
  for (double kept = 0.0; count < all.size() && (count == 0 || kept < enough); ++count) kept += all[count].weight;
  all.resize(count);
  // Tokens are drawn in the order of their ids: two of nearly the same weight, which rounding may exchange (with and
  // without a key-value cache, on another device), then keep their places.
  std::sort(all.begin(), all.end(), [](const TokenWeight& a, const TokenWeight& b) { return a.id < b.id; });
}

void keep_min_p(std::vector<TokenWeight>& all, double min_p) {
  if (min_p <= 0.0) return;
  double largest = 0.0;
  for (const TokenWeight& one : all) largest = std::max(largest, one.weight);
  std::erase_if(all, [&](const TokenWeight& one) { return one.weight < min_p * largest; });
}

}  // namespace

std::vector<TokenWeight> token_weights(std::vector<float> logits, const SamplingOptions& options,
                                       std::span<const int32_t> seen) {
  const bool is_nan = std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
  const auto is_finite = [](float x) { return std::isfinite(x); };
  if (is_nan || !is_finite(*std::max_element(logits.begin(), logits.end())))
    throw Error(ExitCode::kNumeric, "the model's logits are not finite");
  penalize(logits, options.repetition_penalty, seen);
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0.0) return {{static_cast<int32_t>(best - logits.begin()), 1.0}};
  std::vector<TokenWeight> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((static_cast<double>(logits[i]) - *best) / options.temperature);
    if (weight > 0.0) all.push_back({static_cast<int32_t>(i), weight});
  }
  keep_top_k(all, options.top_k);
  keep_top_p(all, options.top_p);
  keep_min_p(all, options.min_p);
  return all;
}

int32_t choose_token(std::vector<float> logits, const SamplingOptions& options, std::span<const int32_t> seen,
                     double draw) {
  const std::vector<TokenWeight> all = token_weights(std::move(logits), options, seen);
  double left = draw * sum_of(all);
  for (const TokenWeight& one : all) {
    left -= one.weight;
    if (left < 0.0) return one.id;
  }
  return all.back().id;
}

bool mask_padded_ids(std::vector<float>& logits, int64_t vocab_size) {
  const auto size = static_cast<size_t>(vocab_size);
  if (vocab_size <= 0 || size >= logits.size()) return false;
  const auto first_padded = logits.begin() + static_cast<ptrdiff_t>(size);
  const bool was_best = *std::max_element(first_padded, logits.end()) > *std::max_element(logits.begin(), first_padded);
  logits.resize(size);
  return was_best;
}

}  // namespace chassis
