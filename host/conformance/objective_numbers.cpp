// Evaluates samples whole, in parts, in another order, by another instance, and next to each value.
#include "host/conformance/objective_numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/conformance/growth.hpp"
#include "host/conformance/objective_samples.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

constexpr double kGradientBound = 1e-6;
// Two sums in another order may differ by this part of their largest addend. Addends within a unit are not known; they
// are about 1, or 1e4 where values are far.
constexpr double kSameSum = 1e-9;
constexpr size_t kMaxFailures = 4;
constexpr size_t kMaxNumDerivatives = 400, kMaxNumbers = 1 << 20;  // per weighting of the terms: compared, computed
// A kink of the loss between the points is rare, and shorter distances avoid it.
constexpr std::array kDistances = {1e-3, 1e-4, 1e-5, 1e-6};

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}
bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) { return same_bits(x, y); });
}

// The arrays of a result, with their names.
using NamedArray = std::pair<const char*, std::vector<double> ObjectiveResult::*>;
constexpr std::array<NamedArray, 6> kArrays = {{{"terms", &ObjectiveResult::terms},
                                                {"sums", &ObjectiveResult::sums},
                                                {"grad_logp", &ObjectiveResult::grad_logp},
                                                {"grad_score", &ObjectiveResult::grad_score},
                                                {"grad_token_logp", &ObjectiveResult::grad_token_logp},
                                                {"grad_top_logp", &ObjectiveResult::grad_top_logp}}};

// A batch with the state that prepare gives for it.
ObjectiveBatch prepared(const ObjectivePlugin& plugin, ObjectiveBatch batch) {
  if (plugin.description().needs_global()) plugin.prepare(batch, batch.state, batch.sequence_state);
  return batch;
}

// Describes the first number whose bits differ; empty if there is none.
std::string difference(const ObjectiveResult& got, const ObjectiveResult& expected) {
  for (const auto& [name, array] : kArrays)
    for (size_t i = 0; i < (got.*array).size(); ++i)
      if (!same_bits((got.*array)[i], (expected.*array)[i]))
        return fmt::format("{}[{}] is {}, expected {}", name, i, (got.*array)[i], (expected.*array)[i]);
  return "";
}

// An array of a batch in the host's memory, so that guards detect reads and writes outside of it.
class Guarded {
 public:
  template <class T>
  T* copy(const T* values, size_t count) {
    if (values == nullptr || count == 0) return const_cast<T*>(values);
    const auto num_bytes = static_cast<int64_t>(count * sizeof(T));
    tensors_.push_back(Tensor::empty(std::span(&num_bytes, 1), Dtype::u8));
    void* const memory = tensors_.back().data_as<std::byte>();
    std::memcpy(memory, values, count * sizeof(T));
    return static_cast<T*>(memory);
  }

 private:
  std::vector<Tensor> tensors_;
};

class NumbersExamination {
 public:
  NumbersExamination(const Instance& instance, const Instance& another)
      : instance_(instance), plugin_(instance), another_(another), desc_(plugin_.description()) {}

  std::vector<std::string> run() {
    examine_description();
    if (!failures_.empty()) return failures_;
    for (size_t i = 0; i < kSamplings.size() && failures_.empty(); ++i) {
      try {
        examine(kSamplings[i]);
      } catch (const Error& error) {
        fail("{}", error.message());
      }
      for (std::string& text : failures_) text = fmt::format("with {}: {}", sampling_text(kSamplings[i]), text);
    }
    return failures_;
  }

 private:
  template <class... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    failures_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void examine_description() {
    if (plugin_.describe() != desc_) fail("describe: the second description differs from the first");
    if (another_.description() != desc_) fail("describe: another instance with the same options has another one");
  }

  void examine(Sampling sampling) {
    addend_ = sampling == Sampling::kFar ? 1e4 : 1;
    const ObjectiveBatch batch = prepared(plugin_, sample_batch(desc_, sampling));
    const ObjectiveResult whole = plugin_.evaluate(batch, true);
    examine_repeats(batch, whole);
    examine_empty_batch(batch);
    examine_parts(batch, whole);
    examine_order(batch, whole);
    if (failures_.empty() && (sampling == Sampling::kUsual || sampling == Sampling::kOther)) examine_gradients(batch);
    if (failures_.empty() && sampling == Sampling::kUsual) {
      examine_bounds(batch);
      examine_growth(batch);
    }
  }

  void examine_repeats(const ObjectiveBatch& batch, const ObjectiveResult& whole) {
    const ObjectiveBatch other = prepared(plugin_, sample_batch(desc_, Sampling::kOther));
    plugin_.evaluate(other, true);
    if (const std::string text = difference(plugin_.evaluate(batch, true), whole); !text.empty())
      fail("evaluate gives other numbers after it has seen another batch: {}", text);
    if (const std::string text = difference(another_.evaluate(batch, true), whole); !text.empty())
      fail("evaluate gives other numbers in another instance with the same options: {}", text);
    if (const std::string text = difference(plugin_.evaluate(batch, false), whole); !text.empty())
      fail("evaluate gives other numbers if no gradients are asked for: {}", text);
    if (!same_bits(plugin_.metrics(whole.sums), another_.metrics(whole.sums)))
      fail("metrics gives other values in another instance with the same options");
    if (!desc_.needs_global()) return;
    for (const ObjectivePlugin* plugin : {&plugin_, &another_}) {
      const ObjectiveBatch again = prepared(*plugin, batch);
      if (!same_bits(again.state, batch.state) || !same_bits(again.sequence_state, batch.sequence_state))
        fail("prepare gives other values {} for the same batch",
             plugin == &plugin_ ? "when it is repeated" : "in another instance with the same options");
    }
  }

  void examine_empty_batch(const ObjectiveBatch& batch) {
    const ObjectiveResult none = plugin_.evaluate(part_of(desc_, batch, {}).batch, true);
    for (const auto& [name, array] : {kArrays[0], kArrays[1]})
      for (size_t i = 0; i < (none.*array).size(); ++i)
        if ((none.*array)[i] != 0) fail("an empty batch adds {} to {}[{}], expected 0", (none.*array)[i], name, i);
    plugin_.metrics(std::vector<double>(desc_.num_sums));
  }

  // Adds what `part` gives to `total`. `largest` has the largest addend of each number.
  void add(const BatchPart& part, ObjectiveResult& total, ObjectiveResult& largest) {
    const ObjectiveResult mine = plugin_.evaluate(part.batch, true);
    for (const auto& [name, array] : {kArrays[0], kArrays[1]})
      for (size_t i = 0; i < (mine.*array).size(); ++i) {
        (total.*array)[i] += (mine.*array)[i];
        (largest.*array)[i] = std::max((largest.*array)[i], std::abs((mine.*array)[i]));
      }
    for (size_t i = 0; i < mine.grad_logp.size(); ++i) total.grad_logp[part.sequences[i]] = mine.grad_logp[i];
    for (size_t i = 0; i < mine.grad_score.size(); ++i)
      total.grad_score[part.sequences[i / desc_.num_scores] * desc_.num_scores + i % desc_.num_scores] =
          mine.grad_score[i];
    for (size_t i = 0; i < mine.grad_token_logp.size(); ++i)
      total.grad_token_logp[part.tokens[i]] = mine.grad_token_logp[i];
    for (size_t i = 0; i < mine.grad_top_logp.size(); ++i)
      total.grad_top_logp[part.tokens[i / desc_.top_k] * desc_.top_k + i % desc_.top_k] = mine.grad_top_logp[i];
  }

  // Compares what parts of a batch give together with what the whole gives.
  void compare(const std::string& what, const ObjectiveBatch& batch, const std::vector<BatchPart>& parts,
               const ObjectiveResult& whole) {
    ObjectiveResult total(desc_, batch, true), largest(desc_, batch, true);
    for (const BatchPart& part : parts) add(part, total, largest);
    for (const auto& [name, array] : kArrays) {
      double scale = 0;
      for (const double value : whole.*array) scale = std::max(scale, std::abs(value));
      const bool is_sum = array == &ObjectiveResult::terms || array == &ObjectiveResult::sums;
      for (size_t i = 0; i < (whole.*array).size(); ++i) {
        const double got = (total.*array)[i], expected = (whole.*array)[i];
        const double size = is_sum ? std::max({addend_, std::abs(expected), (largest.*array)[i]}) : scale;
        if (std::abs(got - expected) > kSameSum * size)
          return fail("{}: {}[{}] is {}, that of the whole batch {}", what, name, i, got, expected);
      }
    }
  }

  void examine_parts(const ObjectiveBatch& batch, const ObjectiveResult& whole) {
    const size_t count = num_units(batch);
    for (const size_t num_parts : {size_t{2}, size_t{3}, count}) {
      std::vector<std::vector<size_t>> units(num_parts);
      // Neighbours, and for 3 parts every third unit.
      for (size_t i = 0; i < count; ++i) units[num_parts == 3 ? i % 3 : i * num_parts / count].push_back(i);
      std::vector<BatchPart> parts;
      for (const auto& mine : units) parts.push_back(part_of(desc_, batch, mine));
      compare(fmt::format("the sum of {} parts", num_parts), batch, parts, whole);
    }
  }

  void examine_order(const ObjectiveBatch& batch, const ObjectiveResult& whole) {
    std::vector<size_t> units(num_units(batch));
    std::iota(units.rbegin(), units.rend(), size_t{0});
    std::swap(units.front(), units[units.size() / 2]);
    BatchPart part = part_of(desc_, batch, units);
    compare("with the units in another order", batch, {part}, whole);
    if (!desc_.needs_global()) return;
    part.batch = prepared(plugin_, std::move(part.batch));
    compare("if prepare gets the units in another order", batch, {part}, whole);
  }

  // Next to values that have a gradient, to each one if they are few. With tokens, a change of one is also one of its
  // sequence's sum, and of its old log-probability if the ratio of both has no gradient.
  void examine_gradients(const ObjectiveBatch& batch) {
    std::vector<std::vector<double>> weightings = {batch.term_weight};
    if (desc_.terms.size() > 1)
      for (size_t i = 0; i < desc_.terms.size(); ++i) {
        weightings.emplace_back(desc_.terms.size());
        weightings.back()[i] = 1;
      }
    const size_t num_values = desc_.scores()         ? batch.score.size()
                              : desc_.needs_tokens() ? batch.num_tokens()
                                                     : batch.num_sequences();
    const size_t num_compared = std::clamp<size_t>(kMaxNumbers / num_values, 8, kMaxNumDerivatives);
    const size_t stride = ((num_values + num_compared - 1) / num_compared) | 1;  // odd, so that no class is left out
    for (size_t i = 0; i < weightings.size() && failures_.empty(); ++i) {
      ObjectiveBatch weighted = batch;
      weighted.term_weight = weightings[i];
      const std::string of = i == 0 ? "the loss" : "term '" + desc_.terms[i - 1].name + "'";
      const ObjectiveResult result = plugin_.evaluate(weighted, true);
      for (size_t at = i % stride; at < num_values && failures_.size() < kMaxFailures; at += stride) {
        if (desc_.scores()) {
          differentiate(of, fmt::format("score[{}]", at), weighted, {&weighted.score[at]}, result.grad_score[at]);
        } else if (desc_.needs_tokens()) {
          const size_t sequence = sequence_of_token(batch, at);
          if (batch.role[sequence] == CHASSIS_SEQUENCE_MISMATCH) continue;
          std::vector<double*> values = {&weighted.token_logp[at], &weighted.logp[sequence]};
          if (desc_.stops_ratio()) values.push_back(&weighted.old_token_logp[at]);
          differentiate(of, fmt::format("token_logp[{}]", at), weighted, values,
                        result.grad_logp[sequence] + result.grad_token_logp[at]);
        } else if (batch.role[at] != CHASSIS_SEQUENCE_MISMATCH) {
          differentiate(of, fmt::format("logp[{}]", at), weighted, {&weighted.logp[at]}, result.grad_logp[at]);
        }
      }
      differentiate_entries(of, weighted, result);
    }
  }

  void differentiate_entries(const std::string& of, ObjectiveBatch& batch, const ObjectiveResult& result) {
    const size_t num_entries = batch.top_logp.size();
    if (num_entries == 0) return;
    const size_t num_compared = std::clamp<size_t>(kMaxNumbers / num_entries, 8, kMaxNumDerivatives);
    const size_t stride = ((num_entries + num_compared - 1) / num_compared) | 1;
    for (size_t at = 0; at < num_entries && failures_.size() < kMaxFailures; at += stride)
      differentiate(of, fmt::format("top_logp[{}]", at), batch, {&batch.top_logp[at]}, result.grad_top_logp[at]);
  }

  double loss_of(const ObjectiveBatch& batch) const {
    const ObjectiveResult result = plugin_.evaluate(batch, false);
    return std::inner_product(result.terms.begin(), result.terms.end(), batch.term_weight.begin(), 0.0);
  }

  // `values` are numbers of `batch`, changed by the same amount.
  void differentiate(const std::string& of, const std::string& by, const ObjectiveBatch& batch,
                     const std::vector<double*>& values, double given) {
    std::vector<double> kept;
    for (const double* value : values) kept.push_back(*value);
    const auto loss_at = [&](double change) {
      for (size_t i = 0; i < values.size(); ++i) *values[i] = kept[i] + change;
      return loss_of(batch);
    };
    std::optional<double> nearest;
    bool agrees = false;
    for (const double h : kDistances) {
      const double near = loss_at(h), far = loss_at(2 * h);
      const double slope = (8 * (near - loss_at(-h)) - (far - loss_at(-2 * h))) / (12 * h);
      if (!nearest || std::abs(slope - given) < std::abs(*nearest - given)) nearest = slope;
      const double rounding = 1e-10 * std::max(1.0, std::abs(near));
      agrees = std::abs(slope - given) <= kGradientBound * std::max(std::abs(slope), std::abs(given)) + rounding;
      if (agrees) break;
    }
    for (size_t i = 0; i < values.size(); ++i) *values[i] = kept[i];
    if (!agrees)
      fail("the gradient of {} with respect to {} is {}, central differences give {}", of, by, given, *nearest);
  }

  // Calls prepare and evaluate on memory that the tests with guards surround by pages without access.
  void examine_bounds(const ObjectiveBatch& batch) {
    const auto& table = instance_.interface<chassis_objective_t>(CHASSIS_OBJECTIVE_ID);
    const size_t sequences = batch.num_sequences(), tokens = desc_.needs_tokens() ? batch.num_tokens() : 0;
    Guarded guarded;
    const auto guard = [&](chassis_objective_batch_t view) {
      view.role = guarded.copy(view.role, sequences);
      view.unit = guarded.copy(view.unit, sequences);
      view.target = guarded.copy(view.target, sequences * desc_.num_targets);
      view.margin = guarded.copy(view.margin, sequences);
      view.logp = guarded.copy(view.logp, sequences);
      view.reference_logp = guarded.copy(view.reference_logp, sequences);
      view.length = guarded.copy(view.length, sequences);
      view.score = guarded.copy(view.score, sequences * desc_.num_scores);
      view.first_token = guarded.copy(view.first_token, sequences + 1);
      view.token_logp = guarded.copy(view.token_logp, tokens);
      view.reference_token_logp = guarded.copy(view.reference_token_logp, tokens);
      view.old_token_logp = guarded.copy(view.old_token_logp, tokens);
      view.state = guarded.copy(view.state, desc_.state_size);
      view.sequence_state = guarded.copy(view.sequence_state, sequences * desc_.state_per_sequence);
      view.term_weight = guarded.copy(view.term_weight, desc_.terms.size());
      view.teacher_count = guarded.copy(view.teacher_count, tokens);
      view.teacher_logp = guarded.copy(view.teacher_logp, tokens * desc_.top_k);
      view.top_logp = guarded.copy(view.top_logp, tokens * desc_.top_k);
      return view;
    };
    if (desc_.needs_global()) {
      const chassis_objective_batch_t global = guard(batch.view(desc_, false));
      const std::vector<double> zeros(std::max(batch.state.size(), batch.sequence_state.size()));
      double* const state = guarded.copy(zeros.data(), batch.state.size());
      double* const sequence_state = guarded.copy(zeros.data(), batch.sequence_state.size());
      instance_.call("prepare", [&](auto* self) { return table.prepare(self, &global, state, sequence_state); });
    }
    const chassis_objective_batch_t part = guard(batch.view(desc_, true));
    ObjectiveResult zeros(desc_, batch, true);
    chassis_objective_result_t out = zeros.view(desc_, true);
    out.terms = guarded.copy(out.terms, zeros.terms.size());
    out.sums = guarded.copy(out.sums, zeros.sums.size());
    out.grad_logp = guarded.copy(out.grad_logp, zeros.grad_logp.size());
    out.grad_score = guarded.copy(out.grad_score, zeros.grad_score.size());
    out.grad_token_logp = guarded.copy(out.grad_token_logp, zeros.grad_token_logp.size());
    out.grad_top_logp = guarded.copy(out.grad_top_logp, zeros.grad_top_logp.size());
    instance_.call("evaluate", [&](auto* self) { return table.evaluate(self, &part, &out); });
  }

  void examine_growth(const ObjectiveBatch& batch) {
    const std::string text =
        growth_of("steps", 20, [&] { plugin_.metrics(plugin_.evaluate(prepared(plugin_, batch), true).sums); });
    if (!text.empty()) fail("{}", text);
  }

  const Instance& instance_;
  const ObjectivePlugin plugin_, another_;
  const ObjectiveDesc& desc_;
  double addend_ = 1;
  std::vector<std::string> failures_;
};

}  // namespace

bool ObjectiveNumbers::equals(const ObjectiveNumbers& other) const {
  return desc == other.desc && same_bits(numbers, other.numbers);
}

ObjectiveNumbers objective_numbers(const ObjectivePlugin& plugin) {
  ObjectiveNumbers out{plugin.description(), {}};
  const auto append = [&](const std::vector<double>& values) {
    out.numbers.insert(out.numbers.end(), values.begin(), values.end());
  };
  for (const Sampling sampling : kSamplings) {
    const ObjectiveResult result = plugin.evaluate(prepared(plugin, sample_batch(out.desc, sampling)), true);
    for (const auto& [name, array] : kArrays) append(result.*array);
    append(plugin.metrics(result.sums));
  }
  return out;
}

std::vector<std::string> number_failures(const Instance& instance, const Instance& another) {
  return NumbersExamination(instance, another).run();
}

}  // namespace chassis
