// Conformance tests of a tokenizer of chassis.tokenizer/1. No oracle exists for the ids of an arbitrary vocabulary, so
// the tests cover the properties that data caches, packing and generation rely on.
#pragma once

#include <string>
#include <vector>

#include "chassis/kind/tokenizer_1.h"

namespace chassis {

struct Tokenizer1Subject {
  const chassis_tokenizer_t* table = nullptr;
  chassis_instance* self = nullptr;
  std::string label;
  std::string options = {};  // for messages, if this is a variant: "lowercase = true"
};

// [any] All failures, with the expected values; empty if none. Tests:
//   - the vocabulary is not empty and has the special ids; the fingerprint is not empty; a second call returns the same
//   - ids are in the vocabulary; offsets are inside the text and do not decrease; threads in parallel get the same
//   - a call with too small a buffer returns the full count and does not write past the end; that size is enough
//   - decoding restores plain ASCII exactly; any other text, also invalid UTF-8, no longer changes after one round trip
//   - decoding an id outside the vocabulary is OUT_OF_RANGE
//   - a second instance with the same options has the same ids and fingerprint; one of `variants` that gives some text
//     different ids has a different fingerprint
std::vector<std::string> tokenizer_1_failures(const Tokenizer1Subject& tokenizer, const Tokenizer1Subject& again,
                                              const std::vector<Tokenizer1Subject>& variants);

}  // namespace chassis
