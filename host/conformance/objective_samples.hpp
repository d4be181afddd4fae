// Batches of random sequences, as an objective asks for them in its description, and parts of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "host/objective/objective_plugin.hpp"

namespace chassis {

enum class Sampling {
  kUsual,
  kOther,      // as kUsual, with other numbers
  kAtStart,    // the model is its reference, and the policy that wrote the answers
  kFar,        // values up to ±1e4 from each other, and log-probabilities of 0
  kOneTarget,  // all targets are equal
};
inline constexpr std::array kSamplings = {Sampling::kUsual, Sampling::kOther, Sampling::kAtStart, Sampling::kFar,
                                          Sampling::kOneTarget};
const char* sampling_text(Sampling sampling);

// A global batch with its term weights; without state. The same arguments give the same batch.
ObjectiveBatch sample_batch(const ObjectiveDesc& desc, Sampling sampling);

// Some units of a batch. `sequences` and `tokens` are the indices in the batch that each of the part's came from.
struct BatchPart {
  ObjectiveBatch batch;
  std::vector<size_t> sequences, tokens;
};
size_t num_units(const ObjectiveBatch& batch);
// Takes the units with these indices, in this order, and numbers them anew. State and term weights are those of the
// batch.
BatchPart part_of(const ObjectiveDesc& desc, const ObjectiveBatch& batch, const std::vector<size_t>& units);

}  // namespace chassis
