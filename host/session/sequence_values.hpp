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
// The gradients of the outputs of the program, on the device.
StreamValues output_gradients(const ObjectiveDesc& desc, const Batch& batch, const ObjectiveResult& result,
                              Device device);
// Gradients with undefined contents, for a rehearsal.
StreamValues empty_gradients(const StreamValues& outputs);

// 1 ÷ the count of each term (counts_of()); 0 where there is nothing to count.
std::vector<double> term_weights(const std::vector<double>& counts);

// Appends the sequences of another batch; units get numbers that follow.
void append(ObjectiveBatch& to, const ObjectiveBatch& batch);

}  // namespace chassis
