// Documents whose sequences an objective reads: where their prompts end, and how they are cut to the length of a row.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "host/data/document.hpp"

namespace chassis {

// The number of labels before the first that is not masked; all if every label is masked.
size_t prompt_length(std::span<const int32_t> labels);

// Why a document is dropped that cannot be cut at its front.
inline constexpr const char* kNoPromptToCut = "longer than train.seq_len without its prompt";

// Cuts equally many tokens from the front of each sequence, which has one token at least before the first trained one
// afterwards, until the unit has at most `limit` tokens. Returns false and changes nothing if prompts are too short.
bool cut_prompts(Document& unit, size_t limit);

// Divides a document of several answers, each of which is a unit of its own, into one document for each, with its
// mismatch if there are mismatches. These follow all answers, in the same order.
std::vector<Document> split_answers(Document&& document);

}  // namespace chassis
