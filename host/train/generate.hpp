// Generates text with a model, one token at a time, with a key-value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "host/program/executor.hpp"

namespace chassis {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  double temperature = 0.0;  // 0: the most likely token
  double top_p = 1.0;        // the smallest set of tokens with this probability (Holtzman et al. 2020)
  uint64_t seed = 0;
  int32_t eos_id = -1;     // ends the text; -1: no token does
  int64_t vocab_size = 0;  // of the tokenizer; larger ids, which pad the vocabulary, are never chosen; 0: no limit
  bool use_cache = true;   // false: the whole row is computed again for every token
};

struct Generated {
  std::vector<int32_t> ids;  // without the prompt and eos
  uint64_t num_masked = 0;   // number of times that the most likely id was not in the vocabulary
};

// [step] Calls `on_token` with each new token. Throws a config error if the prompt is empty.
Generated generate(Executor& executor, const std::vector<int32_t>& prompt, const GenerateOptions& options,
                   Device device, const std::function<void(int32_t)>& on_token);

// Removes the logits of ids outside the vocabulary. Returns whether one of them was the largest of all.
bool mask_padded_ids(std::vector<float>& logits, int64_t vocab_size);

// Chooses the next token from its logits; `draw` is uniform in [0, 1).
int32_t choose_token(const std::vector<float>& logits, double temperature, double top_p, double draw);

}  // namespace chassis
