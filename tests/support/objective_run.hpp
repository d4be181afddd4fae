// Drives an objective plugin over batches in vectors, as the host does for one rank.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "chassis/kind/objective.h"
#include "tests/support/fake_host.hpp"

namespace fake {

// The arrays of chassis_objective_batch_t. Arrays of sequences may be empty if they do not apply.
struct ObjectiveData {
  std::vector<uint32_t> role;
  std::vector<uint64_t> unit;
  std::vector<double> target, margin, logp, reference_logp, length, score;
  std::vector<uint64_t> first_token{0};
  std::vector<double> token_logp, reference_token_logp, old_token_logp;
  std::vector<double> teacher_count, teacher_logp, top_logp;
  std::vector<double> state, sequence_state;

  size_t num_sequences() const { return role.size(); }

  // The given sequences, with the same state.
  ObjectiveData part(const std::vector<size_t>& sequences) const {
    ObjectiveData out;
    out.state = state;
    const auto copy = [&](const auto& from, auto& to, size_t i) {
      const size_t width = num_sequences() == 0 ? 0 : from.size() / num_sequences();
      to.insert(to.end(), from.begin() + static_cast<long>(i * width),
                from.begin() + static_cast<long>((i + 1) * width));
    };
    for (const size_t i : sequences) {
      copy(role, out.role, i), copy(unit, out.unit, i), copy(target, out.target, i), copy(margin, out.margin, i);
      copy(logp, out.logp, i), copy(reference_logp, out.reference_logp, i), copy(length, out.length, i);
      copy(score, out.score, i), copy(sequence_state, out.sequence_state, i);
      for (size_t t = first_token.size() == 1 ? 0 : first_token[i];
           t < (first_token.size() == 1 ? 0 : first_token[i + 1]); ++t) {
        if (!token_logp.empty()) out.token_logp.push_back(token_logp[t]);
        if (!reference_token_logp.empty()) out.reference_token_logp.push_back(reference_token_logp[t]);
        if (!old_token_logp.empty()) out.old_token_logp.push_back(old_token_logp[t]);
        if (teacher_count.empty()) continue;
        out.teacher_count.push_back(teacher_count[t]);
        const size_t top_k = top_logp.size() / teacher_count.size();
        for (size_t k = t * top_k; k < (t + 1) * top_k; ++k)
          out.teacher_logp.push_back(teacher_logp[k]), out.top_logp.push_back(top_logp[k]);
      }
      if (first_token.size() > 1)
        out.first_token.push_back(out.first_token.back() + first_token[i + 1] - first_token[i]);
    }
    return out;
  }
  // The sequences of each unit, in order.
  std::vector<std::vector<size_t>> units() const {
    std::vector<std::vector<size_t>> out;
    for (size_t i = 0; i < num_sequences(); ++i) {
      if (i == 0 || unit[i] != unit[i - 1]) out.emplace_back();
      out.back().push_back(i);
    }
    return out;
  }
};

struct ObjectiveSums {
  std::vector<double> terms, sums, grad_logp, grad_score, grad_token_logp, grad_top_logp;

  std::vector<double> all() const {
    std::vector<double> out;
    for (const auto* list : {&terms, &sums, &grad_logp, &grad_score, &grad_token_logp, &grad_top_logp})
      out.insert(out.end(), list->begin(), list->end());
    return out;
  }
};

class ObjectiveRun {
 public:
  ObjectiveRun(Host& host, const Plugin& plugin, const std::string& id,
               const std::map<std::string, std::string>& options = {})
      : host_(host),
        instance_(host, plugin, "objective", id, options),
        table_(instance_.interface<chassis_objective_t>(CHASSIS_OBJECTIVE_ID)) {
    desc.struct_size = sizeof desc;
    host_.check(table_.describe(instance_.self(), &desc));
  }

  bool needs(uint32_t flag) const { return (desc.needs & flag) != 0; }
  bool has_old_logps() const { return needs(CHASSIS_OBJECTIVE_OLD_LOGPS | CHASSIS_OBJECTIVE_STOPPED_RATIO); }
  bool has_tokens() const { return needs(CHASSIS_OBJECTIVE_TOKENS | CHASSIS_OBJECTIVE_TEACHER) || has_old_logps(); }

  // A batch as this objective needs it; equal seeds give equal batches.
  ObjectiveData random_batch(size_t num_units, unsigned seed) const {
    std::mt19937 random(seed);
    const auto uniform = [&](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    ObjectiveData out;
    for (size_t unit = 0; unit < num_units; ++unit) {
      std::vector<uint32_t> roles = {CHASSIS_SEQUENCE_ANSWER};
      if (desc.units == CHASSIS_OBJECTIVE_PAIRS) roles = {CHASSIS_SEQUENCE_CHOSEN, CHASSIS_SEQUENCE_REJECTED};
      if (desc.units == CHASSIS_OBJECTIVE_ROLLOUTS) roles.assign(unit % 2 == 0 ? 4 : 3, CHASSIS_SEQUENCE_ANSWER);
      if (needs(CHASSIS_OBJECTIVE_MISMATCH)) roles.push_back(CHASSIS_SEQUENCE_MISMATCH);
      const double margin = uniform(0, 1);
      for (const uint32_t role : roles) {
        out.role.push_back(role);
        out.unit.push_back(unit);
        const size_t length = 1 + random() % 9;
        for (uint32_t k = 0; k < desc.num_targets; ++k) {
          const bool is_class = desc.units == CHASSIS_OBJECTIVE_LABELLED || desc.num_classes > 0;
          const unsigned classes = desc.num_classes > 0 ? desc.num_classes : 2;
          out.target.push_back(is_class ? static_cast<double>(random() % classes) : uniform(-2, 2));
        }
        if (needs(CHASSIS_OBJECTIVE_MARGINS)) out.margin.push_back(margin);
        for (uint32_t k = 0; k < desc.num_scores; ++k) out.score.push_back(uniform(-3, 3));
        if (desc.values != CHASSIS_OBJECTIVE_LOGPS) continue;
        out.length.push_back(static_cast<double>(length));
        double logp = 0, reference = 0;
        for (size_t t = 0; t < length; ++t) {
          const double own = uniform(-3, -0.1), theirs = own + uniform(-1.5, 1.5), old = own + uniform(-0.4, 0.4);
          logp += own, reference += theirs;
          if (!has_tokens()) continue;
          out.token_logp.push_back(own);
          if (needs(CHASSIS_OBJECTIVE_REFERENCE)) out.reference_token_logp.push_back(theirs);
          if (has_old_logps()) out.old_token_logp.push_back(old);
          if (!needs(CHASSIS_OBJECTIVE_TEACHER)) continue;
          const size_t count = (unit + t) % 4 == 3 ? 0 : 1 + random() % desc.top_k;
          out.teacher_count.push_back(static_cast<double>(count));
          for (auto* list : {&out.teacher_logp, &out.top_logp}) {
            const double rest = std::exp(uniform(-1, 1));
            std::vector<double> values(count);
            double sum = rest;
            for (double& value : values) value = uniform(-2, 2), sum += std::exp(value);
            for (double& value : values) value -= std::log(sum);
            values.resize(desc.top_k);
            list->insert(list->end(), values.begin(), values.end());
          }
        }
        if (has_tokens()) out.first_token.push_back(out.token_logp.size());
        out.logp.push_back(logp);
        if (needs(CHASSIS_OBJECTIVE_REFERENCE)) out.reference_logp.push_back(reference);
      }
    }
    return out;
  }

  // 1 ÷ the count of each term over this batch, as over the global batch.
  std::vector<double> weights(const ObjectiveData& data) const {
    double units = 0, sequences = 0, tokens = 0, chosen_tokens = 0, targets = 0;
    for (size_t i = 0; i < data.num_sequences(); ++i) {
      units += i == 0 || data.unit[i] != data.unit[i - 1];
      if (data.role[i] == CHASSIS_SEQUENCE_MISMATCH) continue;
      sequences += 1;
      for (uint32_t k = 0; k < desc.num_targets; ++k) targets += !std::isnan(data.target[i * desc.num_targets + k]);
      if (data.length.empty()) continue;
      tokens += data.length[i];
      if (data.role[i] == CHASSIS_SEQUENCE_CHOSEN) chosen_tokens += data.length[i];
    }
    std::vector<double> out;
    for (const chassis_objective_term_t& term : std::span(desc.terms, desc.num_terms))
      out.push_back(1 / (term.count == CHASSIS_COUNT_UNITS           ? units
                         : term.count == CHASSIS_COUNT_SEQUENCES     ? sequences
                         : term.count == CHASSIS_COUNT_TOKENS        ? tokens
                         : term.count == CHASSIS_COUNT_CHOSEN_TOKENS ? chosen_tokens
                                                                     : targets));
    return out;
  }

  // Fills the state of the batch, as if it were the whole global batch.
  void prepare(ObjectiveData& data) const {
    data.state.assign(desc.state_size, 0);
    data.sequence_state.assign(data.num_sequences() * desc.state_per_sequence, 0);
    if (!needs(CHASSIS_OBJECTIVE_GLOBAL | CHASSIS_OBJECTIVE_MISMATCH)) return;
    const std::vector<double> none;
    const chassis_objective_batch_t raw = batch(data, none, false);
    host_.check(table_.prepare(instance_.self(), &raw, data.state.data(), data.sequence_state.data()));
  }

  ObjectiveSums evaluate(const ObjectiveData& data, const std::vector<double>& weights,
                         bool has_gradients = true) const {
    ObjectiveSums out;
    out.terms.resize(desc.num_terms), out.sums.resize(desc.num_sums);
    if (has_gradients) {
      out.grad_logp.resize(data.logp.size()), out.grad_score.resize(data.score.size());
      out.grad_token_logp.resize(data.token_logp.size());
      out.grad_top_logp.resize(data.top_logp.size());
    }
    const auto pointer = [](std::vector<double>& list) { return list.empty() ? nullptr : list.data(); };
    const chassis_objective_batch_t raw = batch(data, weights, true);
    const chassis_objective_result_t result = {sizeof result,
                                               0,
                                               out.terms.data(),
                                               pointer(out.sums),
                                               pointer(out.grad_logp),
                                               pointer(out.grad_score),
                                               pointer(out.grad_token_logp),
                                               pointer(out.grad_top_logp)};
    host_.check(table_.evaluate(instance_.self(), &raw, &result));
    return out;
  }

  // Σ term ÷ count, of terms and of 1 ÷ count.
  static double loss(const ObjectiveSums& sums, const std::vector<double>& weights) {
    double total = 0;
    for (size_t i = 0; i < weights.size(); ++i) total += weights[i] * sums.terms[i];
    return total;
  }

  std::map<std::string, double> metrics(const std::vector<double>& sums) const {
    std::vector<double> values(desc.num_metrics);
    for (size_t i = 0; i < values.size() && table_.metrics == nullptr; ++i) values[i] = sums[2 * i] / sums[2 * i + 1];
    if (table_.metrics != nullptr) host_.check(table_.metrics(instance_.self(), sums.data(), values.data()));
    std::map<std::string, double> out;
    for (size_t i = 0; i < values.size(); ++i) out[text_of(desc.metrics[i].name)] = values[i];
    return out;
  }

  chassis_objective_desc_t desc{};

 private:
  static chassis_objective_batch_t batch(const ObjectiveData& data, const std::vector<double>& weights,
                                         bool with_state) {
    const auto pointer = [](const std::vector<double>& list) { return list.empty() ? nullptr : list.data(); };
    return {sizeof(chassis_objective_batch_t),
            0,
            data.num_sequences(),
            data.token_logp.size(),
            data.role.data(),
            data.unit.data(),
            pointer(data.target),
            pointer(data.margin),
            pointer(data.logp),
            pointer(data.reference_logp),
            pointer(data.length),
            pointer(data.score),
            data.token_logp.empty() ? nullptr : data.first_token.data(),
            pointer(data.token_logp),
            pointer(data.reference_token_logp),
            pointer(data.old_token_logp),
            with_state ? pointer(data.state) : nullptr,
            with_state ? pointer(data.sequence_state) : nullptr,
            pointer(weights),
            pointer(data.teacher_count),
            pointer(data.teacher_logp),
            pointer(data.top_logp)};
  }

  Host& host_;
  Instance instance_;
  const chassis_objective_t& table_;
};

}  // namespace fake
