// The tokenizer that a configuration names, held against the model's own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/session/plugin_tokenizer.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

// NULL if the configuration names none. Throws a config error if it has more ids than the vocabulary, or if weights
// that were trained with another tokenizer would read its ids.
std::unique_ptr<PluginTokenizer> open_tokenizer(const Config& config, RunPlugins& plugins, int64_t vocab_size);

// The tokenizer files of model.path, by name, if [tokenizer] names another than theirs: one whose options lead to no
// file there.
std::vector<std::string> other_tokenizer_files(const Config& config);

}  // namespace chassis
