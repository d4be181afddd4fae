// generation_config.json of a Hugging Face directory: which ids end a text, and how its authors sample from the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace chassis {

// Unset: the file does not say it.
struct GenerationConfig {
  std::string path;              // empty: there is no such file
  std::vector<int32_t> eos_ids;  // eos_token_id, which is one id or a list; empty: none
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;  // 0: no limit
  std::optional<int64_t> max_new_tokens;
  // Keys that would change an answer of transformers but have no effect here, such as num_beams.
  std::vector<std::string> unused_keys;
};

// Throws a config error that names the file and the key, if a value has another type or is out of range. A directory
// without the file has no settings.
GenerationConfig read_generation_config(const std::string& directory);

// eos_ids that the tokenizer has; the others, which can end no text, are counted.
std::vector<int32_t> stop_ids_of(const GenerationConfig& config, int64_t vocab_size);

}  // namespace chassis
