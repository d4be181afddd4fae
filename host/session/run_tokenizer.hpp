// Opens the tokenizer that a configuration names, and compares it with the model's own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/session/plugin_tokenizer.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

// NULL if the configuration names none. Throws a config error if the tokenizer has more ids than the vocabulary, or if
// the weights were trained with another tokenizer.
std::unique_ptr<PluginTokenizer> open_tokenizer(const Config& config, RunPlugins& plugins, int64_t vocab_size);

// The names of the tokenizer files in model.path, if [tokenizer] names another tokenizer, which is one whose options
// name no file there. Else empty.
std::vector<std::string> other_tokenizer_files(const Config& config);

}  // namespace chassis
