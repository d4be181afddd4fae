// Random sequences of every role, with values that rarely occur in runs.
#include "host/conformance/objective_samples.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace chassis {
namespace {

constexpr size_t kNumUnits = 7;
constexpr double kFarthest = 1e4;

class Sampler {
 public:
  Sampler(const ObjectiveDesc& desc, Sampling sampling)
      : desc_(desc), sampling_(sampling), random_(sampling == Sampling::kOther ? 7 : 3) {}

  ObjectiveBatch run() {
    for (size_t unit = 0; unit < kNumUnits; ++unit) add_unit(unit);
    for (const double count : counts_of(desc_, batch_)) batch_.term_weight.push_back(count > 0 ? 1 / count : 0);
    return std::move(batch_);
  }

 private:
  // The standard's distributions differ between libraries.
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  size_t below(size_t count) { return static_cast<size_t>(random_() % count); }

  void add_unit(size_t unit) {
    const double margin = unit % 2 == 0 ? 0 : between(0, 2);
    switch (desc_.units) {
      case CHASSIS_OBJECTIVE_PAIRS:
        add_sequence(unit, CHASSIS_SEQUENCE_CHOSEN, {}, margin);
        add_sequence(unit, CHASSIS_SEQUENCE_REJECTED, {}, margin);
        break;
      case CHASSIS_OBJECTIVE_LABELLED: {
        const std::vector<double> label = {sampling_ == Sampling::kOneTarget || unit % 3 != 0 ? 1.0 : 0.0};
        add_sequence(unit, CHASSIS_SEQUENCE_ANSWER, label, 0);
        if (desc_.needs_mismatches()) add_sequence(unit, CHASSIS_SEQUENCE_MISMATCH, label, 0);
        break;
      }
      case CHASSIS_OBJECTIVE_TEXTS:
        add_sequence(unit, CHASSIS_SEQUENCE_ANSWER, text_targets(unit), 0);
        break;
      case CHASSIS_OBJECTIVE_ANSWERS:
        add_sequence(unit, CHASSIS_SEQUENCE_ANSWER, {}, 0);
        break;
      default:
        for (size_t i = 0; i <= unit % 4; ++i) add_sequence(unit, CHASSIS_SEQUENCE_ANSWER, {reward(unit)}, 0);
    }
  }

  std::vector<double> text_targets(size_t unit) {
    std::vector<double> targets;
    for (size_t i = 0; i < desc_.num_targets; ++i) {
      const bool one = sampling_ == Sampling::kOneTarget;
      if (desc_.num_classes > 0)
        targets.push_back(one ? 0 : static_cast<double>(below(desc_.num_classes)));
      else if (desc_.num_targets > 1 && (unit + i) % 5 == 4)
        targets.push_back(std::numeric_limits<double>::quiet_NaN());
      else
        targets.push_back(one || unit % 3 == 0 ? 1 : unit % 3 == 1 ? 0 : between(0, 1));
    }
    return targets;
  }

  double reward(size_t unit) {
    if (sampling_ == Sampling::kOneTarget) return 1;
    if (sampling_ == Sampling::kFar) return between(-kFarthest, kFarthest);
    return unit == 2 ? 0.5 : between(-1, 2);  // those of one unit are equal, as if all answers were alike
  }

  // No two are equal, since the order of equal values may matter to an objective that sorts them.
  double logp(double tokens) {
    if (sampling_ != Sampling::kFar) return -tokens * between(0.2, 3);
    if (batch_.logp.size() == 3) return 0;
    const size_t range = below(3);
    return range == 0 ? -between(0, 1e-9) : range == 1 ? -between(0, kFarthest) : -between(0.99, 1) * kFarthest;
  }

  void add_sequence(size_t unit, uint32_t role, const std::vector<double>& targets, double margin) {
    batch_.role.push_back(role);
    batch_.unit.push_back(3 * unit + 5);  // numbers ascend, but need not follow each other
    if (desc_.num_targets > 0) batch_.target.insert(batch_.target.end(), targets.begin(), targets.end());
    if (desc_.needs_margins()) batch_.margin.push_back(margin);
    if (desc_.scores()) {
      const double most = sampling_ == Sampling::kFar ? kFarthest : 3;
      for (size_t i = 0; i < desc_.num_scores; ++i)
        batch_.score.push_back(sampling_ == Sampling::kAtStart ? 0 : between(-most, most));
    } else {
      add_answer();
    }
  }

  void add_answer() {
    const size_t length = 1 + below(6);
    const double tokens = static_cast<double>(length);
    batch_.length.push_back(tokens);
    const bool starts = sampling_ == Sampling::kAtStart;
    const auto near = [&](double value, double part) {
      return starts ? value : sampling_ == Sampling::kFar ? logp(tokens) * part : value + between(-0.8, 0.8) * part;
    };
    if (!desc_.needs_tokens()) {
      const double sum = logp(tokens);
      batch_.logp.push_back(sum);
      if (desc_.needs_reference()) batch_.reference_logp.push_back(near(sum, 1));
      return;
    }
    if (batch_.first_token.empty()) batch_.first_token.push_back(0);
    batch_.first_token.push_back(batch_.first_token.back() + length);
    double sum = 0, reference_sum = 0;
    for (size_t i = 0; i < length; ++i) {
      const double token = logp(tokens) / tokens, reference = near(token, 1 / tokens);
      sum += token;
      reference_sum += reference;
      batch_.token_logp.push_back(token);
      if (desc_.needs_reference()) batch_.reference_token_logp.push_back(reference);
      if (desc_.needs_old_logps()) batch_.old_token_logp.push_back(near(token, 1 / tokens));
      if (desc_.needs_teacher()) add_entries();
    }
    batch_.logp.push_back(sum);
    if (desc_.needs_reference()) batch_.reference_logp.push_back(reference_sum);
  }

  // The likeliest tokens of a position, of which there may be none.
  void add_entries() {
    const size_t count = below(5) == 0 ? 0 : 1 + below(desc_.top_k);
    batch_.teacher_count.push_back(static_cast<double>(count));
    const std::vector<double> teacher = entries(count);
    const std::vector<double> model = sampling_ == Sampling::kAtStart ? teacher : entries(count);
    batch_.teacher_logp.insert(batch_.teacher_logp.end(), teacher.begin(), teacher.end());
    batch_.top_logp.insert(batch_.top_logp.end(), model.begin(), model.end());
  }
  // Log-probabilities of `count` tokens, which leave some for others; zeros after them.
  std::vector<double> entries(size_t count) {
    const double most = sampling_ == Sampling::kFar ? kFarthest : 2;
    std::vector<double> values(count);
    for (double& value : values) value = between(-most, most);
    const double rest = between(-1, 1), largest = count == 0 ? 0 : *std::ranges::max_element(values);
    double sum = std::exp(std::min(rest - largest, 0.0));
    for (const double value : values) sum += std::exp(value - largest);
    for (double& value : values) value -= largest + std::log(sum);
    values.resize(desc_.top_k);
    return values;
  }

  const ObjectiveDesc& desc_;
  const Sampling sampling_;
  std::mt19937_64 random_;
  ObjectiveBatch batch_;
};

// Appends row `index` of an array that may not apply.
template <class T>
void append_row(std::vector<T>& to, const std::vector<T>& from, size_t index, size_t width = 1) {
  if (from.empty() || width == 0) return;
  const auto begin = from.begin() + static_cast<std::ptrdiff_t>(index * width);
  to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
}

}  // namespace

const char* sampling_text(Sampling sampling) {
  switch (sampling) {
    case Sampling::kUsual:
    case Sampling::kOther:
      return "usual values";
    case Sampling::kAtStart:
      return "the values at the start of a run";
    case Sampling::kFar:
      return "values up to ±1e4";
    case Sampling::kOneTarget:
      return "equal targets";
  }
  return "?";
}

ObjectiveBatch sample_batch(const ObjectiveDesc& desc, Sampling sampling) { return Sampler(desc, sampling).run(); }

size_t num_units(const ObjectiveBatch& batch) {
  size_t count = 0;
  for (size_t i = 0; i < batch.unit.size(); ++i) count += i == 0 || batch.unit[i] != batch.unit[i - 1];
  return count;
}

BatchPart part_of(const ObjectiveDesc& desc, const ObjectiveBatch& batch, const std::vector<size_t>& units) {
  std::vector<size_t> first;  // of each unit, and the end
  for (size_t i = 0; i < batch.unit.size(); ++i)
    if (i == 0 || batch.unit[i] != batch.unit[i - 1]) first.push_back(i);
  first.push_back(batch.unit.size());

  BatchPart out;
  ObjectiveBatch& part = out.batch;
  part.state = batch.state;
  part.term_weight = batch.term_weight;
  if (desc.needs_tokens()) part.first_token.push_back(0);
  for (size_t place = 0; place < units.size(); ++place)
    for (size_t i = first[units[place]]; i < first[units[place] + 1]; ++i) {
      out.sequences.push_back(i);
      part.role.push_back(batch.role[i]);
      part.unit.push_back(2 * place);
      append_row(part.target, batch.target, i, desc.num_targets);
      append_row(part.score, batch.score, i, desc.num_scores);
      append_row(part.sequence_state, batch.sequence_state, i, desc.state_per_sequence);
      for (const auto array :
           {&ObjectiveBatch::margin, &ObjectiveBatch::logp, &ObjectiveBatch::reference_logp, &ObjectiveBatch::length})
        append_row(part.*array, batch.*array, i);
      if (!desc.needs_tokens()) continue;
      part.first_token.push_back(part.first_token.back() + batch.first_token[i + 1] - batch.first_token[i]);
      for (size_t token = batch.first_token[i]; token < batch.first_token[i + 1]; ++token) {
        out.tokens.push_back(token);
        for (const auto array :
             {&ObjectiveBatch::token_logp, &ObjectiveBatch::reference_token_logp, &ObjectiveBatch::old_token_logp})
          append_row(part.*array, batch.*array, token);
        append_row(part.teacher_count, batch.teacher_count, token);
        append_row(part.teacher_logp, batch.teacher_logp, token, desc.top_k);
        append_row(part.top_logp, batch.top_logp, token, desc.top_k);
      }
    }
  return out;
}

}  // namespace chassis
