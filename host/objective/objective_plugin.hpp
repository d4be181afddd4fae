// An objective plugin in use: chassis.objective/1. Its description and all that it computes are checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/kind/objective.h"
#include "host/data/sequences.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

struct ObjectiveTerm {
  std::string name;
  uint32_t count = CHASSIS_COUNT_UNITS;
  bool operator==(const ObjectiveTerm&) const = default;
};

struct ObjectiveMetric {
  std::string name;
  uint32_t better = CHASSIS_BETTER_NEITHER;
  bool operator==(const ObjectiveMetric&) const = default;
};

// A checked chassis_objective_desc_t. `needs` has the flags that others imply.
struct ObjectiveDesc {
  uint32_t values = CHASSIS_OBJECTIVE_LOGPS;
  uint32_t units = CHASSIS_OBJECTIVE_PAIRS;
  uint32_t needs = 0;
  uint32_t num_scores = 0, num_targets = 0, num_classes = 0;
  std::vector<ObjectiveTerm> terms;
  std::vector<ObjectiveMetric> metrics;
  uint32_t num_sums = 0, state_size = 0, state_per_sequence = 0;
  uint32_t top_k = 0;
  double temperature = 0;

  bool scores() const { return values == CHASSIS_OBJECTIVE_SCORES; }
  bool needs_reference() const { return (needs & CHASSIS_OBJECTIVE_REFERENCE) != 0; }
  bool needs_global() const { return (needs & CHASSIS_OBJECTIVE_GLOBAL) != 0; }
  bool needs_mismatches() const { return (needs & CHASSIS_OBJECTIVE_MISMATCH) != 0; }
  bool needs_tokens() const { return (needs & CHASSIS_OBJECTIVE_TOKENS) != 0; }
  bool needs_old_logps() const { return (needs & CHASSIS_OBJECTIVE_OLD_LOGPS) != 0; }
  bool stops_ratio() const { return (needs & CHASSIS_OBJECTIVE_STOPPED_RATIO) != 0; }
  bool needs_margins() const { return (needs & CHASSIS_OBJECTIVE_MARGINS) != 0; }
  bool needs_teacher() const { return (needs & CHASSIS_OBJECTIVE_TEACHER) != 0; }
  bool operator==(const ObjectiveDesc&) const = default;
};

// Names of values that the program itself writes to records of steps and evaluations. No metric may have one.
bool is_name_of_records(std::string_view name);

// The needs of an objective with this description from the data.
SequenceNeeds needs_of(const ObjectiveDesc& desc);

// The arrays of chassis_objective_batch_t. Those that do not apply to an objective may be empty.
struct ObjectiveBatch {
  std::vector<uint32_t> role;
  std::vector<uint64_t> unit;
  std::vector<double> target, margin, logp, reference_logp, length, score;
  std::vector<uint64_t> first_token;  // one element more than sequences; empty without TOKENS
  std::vector<double> token_logp, reference_token_logp, old_token_logp;
  std::vector<double> teacher_count, teacher_logp, top_logp;
  std::vector<double> state, sequence_state, term_weight;  // for evaluate

  uint64_t num_sequences() const { return role.size(); }
  uint64_t num_tokens() const { return token_logp.size(); }
  // The arrays that apply; those that do not are NULL. Valid until the batch changes. Throws an internal error if an
  // array has another size than the description asks for.
  chassis_objective_batch_t view(const ObjectiveDesc& desc, bool is_evaluated) const;
};

// The sequence that has the token with this index in the arrays of tokens.
size_t sequence_of_token(const ObjectiveBatch& batch, size_t token);

// The count that each term is divided by, of the sequences of a batch. Those of the parts of a batch add up.
std::vector<double> counts_of(const ObjectiveDesc& desc, const ObjectiveBatch& batch);

struct ObjectiveResult {
  std::vector<double> terms, sums;
  // Empty if they do not apply or were not asked for.
  std::vector<double> grad_logp, grad_score, grad_token_logp, grad_top_logp;

  ObjectiveResult() = default;
  // Zeros.
  ObjectiveResult(const ObjectiveDesc& desc, const ObjectiveBatch& batch, bool with_gradients);
  chassis_objective_result_t view(const ObjectiveDesc& desc, bool with_gradients);
};

class ObjectivePlugin {
 public:
  // The instance must outlive it. Throws a plugin error if it offers no objective, lacks a required function, or
  // describes itself in a way that the ABI does not allow.
  explicit ObjectivePlugin(const Instance& instance);

  const ObjectiveDesc& description() const { return desc_; }
  // For the conformance tests: asks again.
  ObjectiveDesc describe() const;
  bool has_prepare() const { return table_.prepare != nullptr; }

  // [step] Only with GLOBAL. `global` holds all sequences of the global batch.
  void prepare(const ObjectiveBatch& global, std::vector<double>& state, std::vector<double>& sequence_state) const;
  // [step] Throws a plugin error if a number is not finite, or if a mismatch has a gradient.
  ObjectiveResult evaluate(const ObjectiveBatch& batch, bool with_gradients) const;
  // [step] One value for each metric; NaN: not known.
  std::vector<double> metrics(const std::vector<double>& sums) const;

  std::string id() const { return instance_->id(); }
  const std::string& label() const { return instance_->label(); }

 private:
  ObjectiveDesc checked(const chassis_objective_desc_t& raw) const;
  void check_values(const ObjectiveDesc& desc) const;
  void check_terms(const ObjectiveDesc& desc) const;
  void check_sizes(const ObjectiveDesc& desc) const;
  Error refusal(const std::string& what) const;

  const Instance* instance_;
  chassis_objective_t table_{};
  ObjectiveDesc desc_;
};

}  // namespace chassis
