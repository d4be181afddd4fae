// Finds and opens the tokenizer that a configuration uses, and compares it with the model's own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/session/plugin_tokenizer.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

// The tokenizers that read files, as their manifests say, and lie in the program's own folder: as with "auto" of
// [attention], a plugin of another folder runs only if the user names it.
std::vector<std::string> own_file_tokenizers(const PluginRegistry& registry);
// The first of them that opens a file of the directory; if it has other tokenizer files, the first of all, which says
// what is missing. Empty if there is none.
std::string tokenizer_of_directory(const PluginRegistry& registry, const std::string& directory);

struct TokenizerChoice {
  std::string member;       // empty: none
  std::string directory;    // from which it is opened; empty: there is none
  bool is_default = false;  // found by the files of the directory, not named
};

// What [tokenizer] names. If it names no plugin but the run needs a tokenizer, the plugin whose manifest names a file
// of tokenizer.path or model.path; only plugins of the program's own folder are found so. Throws a config error if
// there are files but no plugin for them, or if text is to be read and there are none.
TokenizerChoice find_tokenizer(const Config& config, const PluginRegistry& registry);

// NULL if there is none. Throws a config error if the tokenizer has more ids than the vocabulary, or if the weights
// were trained with another tokenizer and tokenizer.force is not set.
std::unique_ptr<PluginTokenizer> open_tokenizer(const Config& config, RunPlugins& plugins,
                                                const TokenizerChoice& choice, int64_t vocab_size);

// The names of the tokenizer files in model.path, if `tokenizer` was not opened from them. Else empty, also if it is
// NULL.
std::vector<std::string> other_tokenizer_files(const Config& config, const PluginTokenizer* tokenizer);

}  // namespace chassis
