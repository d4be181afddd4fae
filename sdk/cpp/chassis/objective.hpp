// The base of objectives: losses and gradients from the log-probabilities or scores of sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/kind/objective.h"
#include "chassis/member.hpp"
#include "chassis/options.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

struct ObjectiveTerm {
  std::string name;
  uint32_t count = CHASSIS_COUNT_UNITS;  // the host divides the sum by it
};

struct ObjectiveMetric {
  std::string name;
  uint32_t better = CHASSIS_BETTER_NEITHER;
};

// As chassis_objective_desc_t, which describes each member.
struct ObjectiveDescription {
  uint32_t values = CHASSIS_OBJECTIVE_LOGPS;
  uint32_t units = CHASSIS_OBJECTIVE_PAIRS;
  uint32_t needs = 0;
  std::vector<ObjectiveTerm> terms;
  std::vector<ObjectiveMetric> metrics;
  uint32_t num_scores = 0, num_targets = 0, num_classes = 0;
  uint32_t state_size = 0, state_per_sequence = 0;
  uint32_t num_sums = 0;  // 0: a sum and a count for each metric, as ObjectiveResult::add_metric adds them
  uint32_t top_k = 0;
  double temperature = 0;
};

// The sequences of a batch. Spans of arrays that do not apply are empty; valid during the call that passes the batch.
class ObjectiveBatch {
 public:
  ObjectiveBatch(const chassis_objective_batch_t* raw, const ObjectiveDescription& description)
      : raw_(read_sized(raw)), description_(description) {}

  const chassis_objective_batch_t& raw() const noexcept { return raw_; }
  size_t num_sequences() const noexcept { return raw_.num_sequences; }
  size_t num_tokens() const noexcept { return raw_.num_tokens; }

  // One value for each sequence.
  std::span<const uint32_t> role() const noexcept { return of_sequences(raw_.role); }
  std::span<const uint64_t> unit() const noexcept { return of_sequences(raw_.unit); }
  std::span<const double> margin() const noexcept { return of_sequences(raw_.margin); }
  std::span<const double> logp() const noexcept { return of_sequences(raw_.logp); }
  std::span<const double> reference_logp() const noexcept { return of_sequences(raw_.reference_logp); }
  std::span<const double> length() const noexcept { return of_sequences(raw_.length); }

  // The values of sequence i.
  std::span<const double> target(size_t i) const noexcept { return row(raw_.target, i, description_.num_targets); }
  std::span<const double> score(size_t i) const noexcept { return row(raw_.score, i, description_.num_scores); }
  std::span<const double> sequence_state(size_t i) const noexcept {
    return row(raw_.sequence_state, i, description_.state_per_sequence);
  }
  std::span<const double> state() const noexcept { return row(raw_.state, 0, description_.state_size); }

  // The tokens of sequence i are [first_token(i), first_token(i + 1)) of all tokens.
  size_t first_token(size_t i) const noexcept { return raw_.first_token[i]; }
  std::span<const double> token_logp(size_t i) const noexcept { return of_tokens(raw_.token_logp, i); }
  std::span<const double> reference_token_logp(size_t i) const noexcept {
    return of_tokens(raw_.reference_token_logp, i);
  }
  std::span<const double> old_token_logp(size_t i) const noexcept { return of_tokens(raw_.old_token_logp, i); }

  // TEACHER: the entries of a token, where `token` counts all tokens of the batch.
  size_t teacher_count(size_t token) const noexcept { return static_cast<size_t>(raw_.teacher_count[token]); }
  std::span<const double> teacher_logp(size_t token) const noexcept { return entries(raw_.teacher_logp, token); }
  std::span<const double> top_logp(size_t token) const noexcept { return entries(raw_.top_logp, token); }

  // PAIRS: calls body(chosen, rejected) with the indices of both sequences of each pair.
  template <typename Body>
  void for_each_pair(Body&& body) const {
    for (size_t i = 0; i < num_sequences(); i += 2) {
      if (i + 1 == num_sequences() || raw_.role[i] != CHASSIS_SEQUENCE_CHOSEN ||
          raw_.role[i + 1] != CHASSIS_SEQUENCE_REJECTED)
        throw Failure(CHASSIS_INTERNAL, "sequence ", i, " of a batch of ", num_sequences(), " does not begin a pair");
      body(i, i + 1);
    }
  }
  // Calls body(begin, end) with the range of the sequences of each unit.
  template <typename Body>
  void for_each_unit(Body&& body) const {
    for (size_t begin = 0, end = 0; begin < num_sequences(); begin = end) {
      while (end < num_sequences() && raw_.unit[end] == raw_.unit[begin]) ++end;
      body(begin, end);
    }
  }

 private:
  template <typename T>
  std::span<const T> of_sequences(const T* values) const noexcept {
    return {values, values == nullptr ? 0 : num_sequences()};
  }
  static std::span<const double> row(const double* values, size_t i, size_t width) noexcept {
    return values == nullptr ? std::span<const double>() : std::span(values + i * width, width);
  }
  std::span<const double> of_tokens(const double* values, size_t i) const noexcept {
    if (values == nullptr) return {};
    return {values + raw_.first_token[i], raw_.first_token[i + 1] - raw_.first_token[i]};
  }

  std::span<const double> entries(const double* values, size_t token) const noexcept {
    return {values + token * description_.top_k, teacher_count(token)};
  }

  const chassis_objective_batch_t raw_;
  const ObjectiveDescription& description_;
};

// Adds up the terms, metrics and gradients of a batch. Derivatives are those of a term's sum: they are multiplied by
// the weight of the term here, and dropped if only values are asked for.
class ObjectiveResult {
 public:
  ObjectiveResult(const chassis_objective_batch_t& batch, const chassis_objective_result_t* raw,
                  const ObjectiveDescription& description)
      : raw_(read_sized(raw)), weight_(batch.term_weight), description_(description) {}

  bool has_gradients() const noexcept {
    return raw_.grad_logp != nullptr || raw_.grad_score != nullptr || raw_.grad_token_logp != nullptr;
  }

  void add_term(size_t term, double value) { raw_.terms[term] += value; }
  void add_grad_logp(size_t term, size_t sequence, double derivative) {
    if (raw_.grad_logp != nullptr) raw_.grad_logp[sequence] += weight_[term] * derivative;
  }
  void add_grad_score(size_t term, size_t sequence, size_t score, double derivative) {
    if (raw_.grad_score != nullptr)
      raw_.grad_score[sequence * description_.num_scores + score] += weight_[term] * derivative;
  }
  // `token` counts all tokens of the batch. A token's gradient is this plus that of its sequence.
  void add_grad_token_logp(size_t term, size_t token, double derivative) {
    if (raw_.grad_token_logp != nullptr) raw_.grad_token_logp[token] += weight_[term] * derivative;
  }
  void add_grad_top_logp(size_t term, size_t token, size_t entry, double derivative) {
    if (raw_.grad_top_logp != nullptr)
      raw_.grad_top_logp[token * description_.top_k + entry] += weight_[term] * derivative;
  }

  // For members that do not override metrics(): the metric is Σ sum ÷ Σ count.
  void add_metric(size_t metric, double sum, double count = 1) {
    raw_.sums[2 * metric] += sum;
    raw_.sums[2 * metric + 1] += count;
  }
  std::span<double> sums() const noexcept { return {raw_.sums, description_.num_sums}; }

 private:
  const chassis_objective_result_t raw_;
  const double* weight_;
  const ObjectiveDescription& description_;
};

// The arrays that prepare_step fills; all values are 0 before.
struct ObjectiveState {
  std::span<double> values;         // [state_size]
  std::span<double> all_sequences;  // [num_sequences, state_per_sequence]
  size_t per_sequence = 0;

  std::span<double> sequence(size_t i) const { return all_sequences.subspan(i * per_sequence, per_sequence); }
};

// A member checks its options in its constructor and refuses combinations in which an option has no effect.
class Objective : public Member {
 public:
  static constexpr std::string_view kKind = "objective";
  using Member::Member;

  // [control] Called once.
  virtual ObjectiveDescription describe() const = 0;
  // [step] Deterministic. Needs CHASSIS_OBJECTIVE_GLOBAL in `needs`.
  virtual void prepare_step(const ObjectiveBatch& /*global*/, const ObjectiveState& /*out*/) const {}
  // [step] The sums of parts of a batch are those of the whole.
  virtual void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const = 0;
  // [step] Gets `num_sums` sums and writes a value for each metric; NaN: not known.
  virtual void metrics(std::span<const double> sums, std::span<double> out) const {
    for (size_t i = 0; i < out.size(); ++i) out[i] = sums[2 * i] / sums[2 * i + 1];  // 0 ÷ 0 is NaN
  }

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    constexpr bool kPrepares = kOverridden<&Objective::prepare_step, &T::prepare_step>;
    constexpr bool kComputes = kOverridden<&Objective::metrics, &T::metrics>;
    static constexpr chassis_objective_t kTable = {
        sizeof(chassis_objective_t),         0, &describe_entry, kPrepares ? &prepare_entry : nullptr, &evaluate_entry,
        kComputes ? &metrics_entry : nullptr};
    return id == CHASSIS_OBJECTIVE_ID ? &kTable : nullptr;
  }

 protected:
  // "objective.beta = 0.1"
  std::string shown(std::string_view option) const {
    return join("objective.", option, " = ", option_json(host(), option));
  }
  // Throws "run.toml:7:1: objective.beta = 0.0 " and the parts.
  template <typename... Parts>
  [[noreturn]] void fail_option(std::string_view option, const Parts&... parts) const {
    const std::string origin = option_origin(host(), option);
    fail_invalid(origin == "default" ? "" : origin + ": ", shown(option), " ", parts...);
  }
  // Refuses an option that differs from its default in `schema` although it has no effect; the parts say why:
  // "with objective.loss = \"hinge\"".
  template <typename... Parts>
  void refuse_if_set(const Options& schema, std::string_view option, const Parts&... parts) const {
    if (option_differs(host(), schema, option)) fail_option(option, "has no effect ", parts...);
  }

 private:
  // The description, and the arrays of the ABI that point into it.
  struct Described {
    explicit Described(ObjectiveDescription given) : own(std::move(given)) {
      if (own.num_sums == 0) own.num_sums = static_cast<uint32_t>(2 * own.metrics.size());
      for (const ObjectiveTerm& term : own.terms) terms.push_back({str(term.name), term.count, 0});
      for (const ObjectiveMetric& metric : own.metrics) metrics.push_back({str(metric.name), metric.better, 0});
    }
    Described(const Described&) = delete;
    Described& operator=(const Described&) = delete;

    ObjectiveDescription own;
    std::vector<chassis_objective_term_t> terms;
    std::vector<chassis_objective_metric_t> metrics;
  };
  const Described& described() {
    if (!described_) described_.emplace(describe());
    return *described_;
  }

  template <typename Body>
  static chassis_status_t* call(chassis_instance* self, Body&& body) noexcept {
    Objective& objective = member_of<Objective>(self);
    return guard(objective.host().table(), [&] { body(objective, objective.described()); });
  }
  static chassis_status_t* describe_entry(chassis_instance* self, chassis_objective_desc_t* out) noexcept {
    return call(self, [&](Objective&, const Described& d) {
      write_sized<chassis_objective_desc_t>(
          {0, d.own.values, d.own.units, d.own.needs, d.own.num_scores, d.own.num_targets,
           static_cast<uint32_t>(d.terms.size()), static_cast<uint32_t>(d.metrics.size()), d.terms.data(),
           d.metrics.data(), d.own.num_sums, d.own.state_size, d.own.state_per_sequence, d.own.num_classes, d.own.top_k,
           0, d.own.temperature},
          out);
    });
  }
  static chassis_status_t* prepare_entry(chassis_instance* self, const chassis_objective_batch_t* global, double* state,
                                         double* sequence_state) noexcept {
    return call(self, [&](Objective& objective, const Described& d) {
      const ObjectiveBatch batch(global, d.own);
      const size_t per_sequence = d.own.state_per_sequence;
      objective.prepare_step(
          batch, {{state, d.own.state_size}, {sequence_state, batch.num_sequences() * per_sequence}, per_sequence});
    });
  }
  static chassis_status_t* evaluate_entry(chassis_instance* self, const chassis_objective_batch_t* raw,
                                          const chassis_objective_result_t* out) noexcept {
    return call(self, [&](Objective& objective, const Described& d) {
      const ObjectiveBatch batch(raw, d.own);
      ObjectiveResult result(batch.raw(), out, d.own);
      objective.evaluate(batch, result);
    });
  }
  static chassis_status_t* metrics_entry(chassis_instance* self, const double* sums, double* out) noexcept {
    return call(self, [&](Objective& objective, const Described& d) {
      objective.metrics({sums, d.own.num_sums}, {out, d.metrics.size()});
    });
  }

  std::optional<Described> described_;
};

CHASSIS_SDK_END
