// Whether a tokenizer keeps the promises of its header. There is no oracle for the ids of just any vocabulary: what is
// checked is what data caches, packing and generation rely on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "chassis/kind/tokenizer.h"

namespace chassis {

struct TokenizerSubject {
  const chassis_tokenizer_t* table = nullptr;
  chassis_instance* self = nullptr;
  std::string who;
  std::string options = {};  // of a variant, in words: "lowercase = true"
};

// [any] Everything that is wrong, with what was expected; empty if nothing is.
//   - the vocabulary is not empty, special ids lie in it, the fingerprint is not empty; all the same when asked again
//   - ids lie in the vocabulary; offsets within the text, never going back; the same from several threads at once
//   - too little room is told and not written past; text and ids that were counted fit
//   - plain ASCII comes back byte by byte; any text, broken UTF-8 too, comes back the same once it was encoded and
//   decoded
//   - an id outside the vocabulary is OUT_OF_RANGE
//   - a second instance with the same options has the same ids and fingerprint; one of `variants` that gives any text
//   other
//     ids has another fingerprint
std::vector<std::string> tokenizer_failures(const TokenizerSubject& tokenizer, const TokenizerSubject& again,
                                            const std::vector<TokenizerSubject>& variants);

}  // namespace chassis
