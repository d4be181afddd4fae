// Between the tensors that a program gives for a micro-batch and the arrays that an objective reads. Sums over tokens
// are in double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host/data/batch.hpp"
#include "host/execute/executor.hpp"
#include "host/objective/objective_plugin.hpp"
#include "host/service/device.hpp"

namespace chassis {

// The sequences of a micro-batch with what the data say about them, without values.
ObjectiveBatch sequence_facts(const ObjectiveDesc& desc, const Batch& batch);
// The same with the values of the model.
ObjectiveBatch sequence_values(const ObjectiveDesc& desc, const Batch& batch, const StreamValues& outputs);
// Adds those of the reference, which computed the same micro-batch.
void add_reference(const ObjectiveDesc& desc, const Batch& batch, const StreamValues& outputs, ObjectiveBatch& values);
// Adds those that were computed before training.
void add_reference(const ObjectiveDesc& desc, const Batch& batch, ObjectiveBatch& values);
// Those of each sequence, to be kept.
std::vector<ReferenceLogps> reference_logps(const ObjectiveDesc& desc, const Batch& batch, const StreamValues& outputs);
// [num_sequences, num_scores]: the scores at the last position of each sequence.
std::vector<double> sequence_scores(const Batch& batch, const StreamValues& outputs, size_t num_scores);
// The gradients of the outputs of the program, on the device.
StreamValues output_gradients(const ObjectiveDesc& desc, const Batch& batch, const ObjectiveResult& result,
                              Device device);
// Gradients with undefined contents, for a rehearsal.
StreamValues empty_gradients(const StreamValues& outputs);

// 1 ÷ the count of each term (counts_of()); 0 where there is nothing to count.
std::vector<double> term_weights(const std::vector<double>& counts);

// The arrays of a batch whose numbers stay the same in another batch: all but roles, units and first tokens.
inline constexpr std::vector<double> ObjectiveBatch::*kSequenceArrays[] = {
    &ObjectiveBatch::target,         &ObjectiveBatch::margin,
    &ObjectiveBatch::logp,           &ObjectiveBatch::reference_logp,
    &ObjectiveBatch::length,         &ObjectiveBatch::score,
    &ObjectiveBatch::token_logp,     &ObjectiveBatch::reference_token_logp,
    &ObjectiveBatch::old_token_logp, &ObjectiveBatch::teacher_count,
    &ObjectiveBatch::teacher_logp,   &ObjectiveBatch::top_logp};

// Appends the sequences of another batch; units get numbers that follow.
void append(ObjectiveBatch& to, const ObjectiveBatch& batch);

}  // namespace chassis
