// The facts that the data have about the sequences of a document: prompts with answers, or texts, that an objective
// scores one by one. The two answers of a pair are one document of two sequences, so they always share a row.
#pragma once

#include <cstdint>
#include <vector>

#include "chassis/kind/objective.h"

namespace chassis {

enum class SequenceRole : uint32_t {
  kAnswer = CHASSIS_SEQUENCE_ANSWER,
  kChosen = CHASSIS_SEQUENCE_CHOSEN,
  kRejected = CHASSIS_SEQUENCE_REJECTED,
  kMismatch = CHASSIS_SEQUENCE_MISMATCH,
};

// The entries that a teacher gives for the tokens of an answer, one after the other.
struct TeacherFacts {
  std::vector<uint32_t> counts = {};  // of each token of the answer
  std::vector<int32_t> ids = {};
  std::vector<float> logps = {};
  bool operator==(const TeacherFacts&) const = default;
};

struct SequenceFacts {
  SequenceRole role = SequenceRole::kAnswer;
  int64_t length = 0;                  // tokens, of prompt and answer
  std::vector<double> targets = {};    // as in chassis_objective_desc_t; NaN: none
  double margin = 0;                   // of a pair, on both of its sequences
  std::vector<double> old_logps = {};  // of the tokens of the answer, from the data; empty: not needed
  TeacherFacts teacher = {};
  bool operator==(const SequenceFacts&) const = default;
};

// Log-probabilities of a sequence by the reference, if they were computed before training (reference_store.hpp).
struct ReferenceLogps {
  double sum = 0;                  // over the tokens of the answer
  std::vector<float> tokens = {};  // of the answer; empty if the objective reads sums alone
  bool operator==(const ReferenceLogps&) const = default;
};

// A sequence of a micro-batch.
struct BatchSequence {
  int64_t row = 0, begin = 0;  // its first position
  uint64_t unit = 0;           // sequences of one document have the same number; numbers ascend
  uint64_t document = 0;       // its number in the set
  SequenceFacts facts;
  ReferenceLogps reference = {};
};

// A document of sequences, which a row of a batch takes as a whole.
struct DocumentUnit {
  uint64_t document = 0;
  std::vector<SequenceFacts> sequences;
  std::vector<ReferenceLogps> references = {};  // one for each sequence, or none
};

// The needs of an objective that the data meet; described in chassis/kind/objective.h.
struct SequenceNeeds {
  uint32_t units = CHASSIS_OBJECTIVE_PAIRS;
  bool mismatches = false;
  bool old_logps = false;
  int64_t num_targets = 0;
  int64_t num_classes = 0;
  bool scores = false;   // sequences are scored at their last token; otherwise answers need a trained token
  int64_t top_k = 0;     // a teacher gives at most so many entries for each token; 0: there is none
  bool margins = false;  // those of pairs are read
  bool operator==(const SequenceNeeds&) const = default;
};

}  // namespace chassis
