// Samples tokens from the logits of the last position.
#include "host/train/generate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "host/base/error.hpp"
#include "host/service/rng.hpp"

namespace chassis {
namespace {

Fields fields_of(const std::vector<int32_t>& ids, size_t begin, Device device) {
  const int64_t sizes[] = {1, static_cast<int64_t>(ids.size() - begin)};
  std::vector<int32_t> positions(ids.size() - begin);
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
  auto field = [&](const int32_t* values) {
    Tensor tensor = Tensor::empty(sizes, Dtype::i32, device);
    tensor.copy_from(Tensor::borrow(const_cast<int32_t*>(values), sizes, Dtype::i32));
    return tensor;
  };
  return {{"input_ids", field(ids.data() + begin)}, {"positions", field(positions.data())}};
}

std::vector<float> last_logits(const Tensor& logits) {
  const int64_t vocab = logits.size(2);
  std::vector<float> values(static_cast<size_t>(vocab));
  const int64_t sizes[] = {vocab};
  Tensor::borrow(values.data(), sizes, Dtype::f32)
      .copy_from(logits.flat().narrow(0, logits.num_elements() - vocab, vocab));
  return values;
}

}  // namespace

bool mask_padded_ids(std::vector<float>& logits, int64_t vocab_size) {
  const auto size = static_cast<size_t>(vocab_size);
  if (vocab_size <= 0 || size >= logits.size()) return false;
  const auto first_padded = logits.begin() + static_cast<ptrdiff_t>(size);
  const bool was_best = *std::max_element(first_padded, logits.end()) > *std::max_element(logits.begin(), first_padded);
  logits.resize(size);
  return was_best;
}

int32_t choose_token(const std::vector<float>& logits, double temperature, double top_p, double draw) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*best) || std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }))
    throw Error(ExitCode::kNumeric, "the model's logits are not finite");
  if (temperature <= 0.0) return static_cast<int32_t>(best - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  std::vector<double> weights;
  double total = 0.0;
  for (int32_t id : order)
    total +=
        weights.emplace_back(std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) - *best) / temperature));
  double kept = 0.0;
  size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < top_p * total)) kept += weights[count++];
  double left = draw * kept;
  for (size_t i = 0; i < count; ++i) {
    left -= weights[i];
    if (left < 0.0) return order[i];
  }
  return order[count - 1];
}

Generated generate(Executor& executor, const std::vector<int32_t>& prompt, const GenerateOptions& options,
                   Device device, const std::function<void(int32_t)>& on_token) {
  if (prompt.empty())
    throw config_error("the prompt is empty").hint("give at least one token, for example --prompt \"The\"");
  KeyValueCache cache(static_cast<int64_t>(prompt.size()) + options.max_new_tokens);
  std::vector<int32_t> row = prompt;
  Generated text;
  size_t seen = 0;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const Tensor logits = executor.logits(fields_of(row, seen, device), options.use_cache ? &cache : nullptr, true);
    if (options.use_cache) seen = row.size();
    float draw = 0.0f;
    random_uniform(options.seed, "generate", row.size(), {&draw, 1});
    std::vector<float> row_logits = last_logits(logits);
    text.num_masked += mask_padded_ids(row_logits, options.vocab_size);
    const int32_t id = choose_token(row_logits, options.temperature, options.top_p, draw);
    if (id == options.eos_id) break;
    row.push_back(id);
    text.ids.push_back(id);
    if (on_token) on_token(id);
  }
  return text;
}

}  // namespace chassis
