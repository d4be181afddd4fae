// An objective in a training step and in an evaluation: the values of the reference, those of the model where the
// objective needs all of a global batch at once, and the counts by which its terms are divided. Then, for each
// micro-batch, loss and gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/data/batch.hpp"
#include "host/session/ranks.hpp"
#include "host/session/reference_model.hpp"
#include "host/session/sequence_values.hpp"
#include "host/session/session.hpp"
#include "host/session/step.hpp"

namespace chassis {

// By name; a metric without a value is left out.
using ObjectiveMetrics = std::vector<std::pair<std::string, double>>;

class ObjectiveStep {
 public:
  // `reference` is NULL if the objective needs none, or if its values were computed before training: the data then
  // have them. All must outlive it.
  ObjectiveStep(Session& session, ReferenceModel* reference);

  // [step][all-ranks] Call before the step's first forward. `micro_batches` are those of this rank, on all ranks as
  // many, and stay as they are until the step's end.
  void begin(const std::vector<Batch>& micro_batches);
  // [step] Loss and gradients of a micro-batch of that step.
  ObjectiveValue value(int microbatch, const StreamValues& outputs);
  // This rank's sums over the step, as many on every rank; metrics() takes those over all ranks.
  std::vector<double> sums() const;
  ObjectiveMetrics metrics(const std::vector<double>& sums) const;
  // Throws a numeric error if the model of that step was not its own reference within rounding, as it is before the
  // first step.
  void require_equal_to_reference(const std::vector<double>& sums) const;

  // [all-ranks] For an evaluation: adds a micro-batch. Padding has no sequences.
  void add(const Batch& batch);
  struct Evaluation {
    double loss = 0;
    uint64_t num_units = 0;
    ObjectiveMetrics metrics;
  };
  // [all-ranks] The result for all that was added since the last call, on all ranks.
  Evaluation finish();

 private:
  const ObjectiveDesc& desc() const { return objective_.desc(); }
  bool is_precomputed() const { return desc().needs_reference() && reference_ == nullptr; }
  ObjectiveBatch values_of(const Batch& batch);
  void add_reference_of(const Batch& batch, ObjectiveBatch& values);
  // True if an evaluation keeps no values: those of a teacher would be too many.
  bool sums_at_once() const { return desc().needs_teacher() && !desc().needs_global(); }
  void add_sums(ObjectiveBatch values);
  Evaluation finish_sums();
  double loss_of(const ObjectiveResult& result) const;  // Σ terms · weights
  double farthest_at_start() const;
  // [all-ranks] The batches of all data-parallel ranks, in the order of the data: batch i of rank r is the i · ranks +
  // r-th.
  std::vector<ObjectiveBatch> exchanged(const std::vector<ObjectiveBatch>& own) const;

  Session& session_;
  const RunObjective& objective_;
  ReferenceModel* reference_;
  const std::vector<Batch>* micro_batches_ = nullptr;
  std::vector<ObjectiveBatch> references_;  // by micro-batch: reference_logp and reference_token_logp alone
  std::vector<double> state_, term_weights_;
  std::vector<std::vector<double>> sequence_states_;  // by micro-batch
  std::vector<double> terms_, sums_;                  // of this rank's micro-batches so far
  std::vector<ObjectiveBatch> added_;
  std::vector<double> added_sums_;  // of an evaluation so far: terms, sums, counts of the terms, units
  double distance_ = 0;             // the largest of an answer in this step, per token
};

}  // namespace chassis
