// The settings of generation: [generate], and for keys that it leaves out, the model's generation_config.json.
#pragma once

#include <string>
#include <vector>

#include "host/config/settings.hpp"
#include "host/data/generation_config.hpp"
#include "host/data/tokenizer.hpp"
#include "host/generate/generate.hpp"

namespace chassis {

struct GenerationSettings {
  GenerateOptions options;
  std::vector<std::string> stop_texts;
  std::string from_file;  // a line that lists the settings taken from generation_config.json; empty if none
};

// The generation_config.json of the model directory that the settings name, if any.
GenerationConfig generation_config_of(const Settings& settings);

// As in transformers, a file without do_sample = true means the most likely token. Stop ids are those of the file and
// the tokenizer's EOS. Throws for a setting without effect; counts a warning for a key of the file.
GenerationSettings generation_settings(const Settings& settings, const GenerationConfig& file,
                                       const Tokenizer& tokenizer);

}  // namespace chassis
