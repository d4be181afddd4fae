// Chooses the next token from the logits of the last position, in the order in which transformers applies its settings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace chassis {

struct SamplingOptions {
  double temperature = 0.0;  // 0: the most likely token; the settings below that need a distribution have no effect
  int64_t top_k = 0;         // only the most likely ones, and those as likely as the last of them; 0: all
  double top_p = 1.0;        // the smallest set of tokens with this probability (Holtzman et al. 2020)
  double min_p = 0.0;        // only tokens with at least this fraction of the largest probability
  // Positive logits of tokens that occurred are divided by this and negative ones multiplied, once for each token
  // (Keskar et al. 2019, CTRL). Applies at temperature 0 too.
  double repetition_penalty = 1.0;
};

struct TokenWeight {
  int32_t id = 0;
  double weight = 0.0;  // proportional to its probability
};

// The tokens that may be drawn. `seen`: the prompt and the tokens generated so far. Throws a numeric error if a logit
// is NaN or +infinity, or if all are -infinity.
std::vector<TokenWeight> token_weights(std::vector<float> logits, const SamplingOptions& options,
                                       std::span<const int32_t> seen);

// Draws one of them; `draw` is uniform in [0, 1).
int32_t choose_token(std::vector<float> logits, const SamplingOptions& options, std::span<const int32_t> seen,
                     double draw);

// Removes the logits of ids outside the vocabulary. Returns whether one of them was the largest of all.
bool mask_padded_ids(std::vector<float>& logits, int64_t vocab_size);

}  // namespace chassis
