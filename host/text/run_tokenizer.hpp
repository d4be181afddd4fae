// Finds and opens the tokenizer that a configuration uses, and compares it with the model's own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/plugin/registry.hpp"
#include "host/text/plugin_tokenizer.hpp"

namespace chassis {

// The tokenizers of the program's own folder whose manifests list files. As with "auto" of [attention], a plugin of
// another folder runs only if the user names it.
std::vector<std::string> own_file_tokenizers(const PluginRegistry& registry);
// The first of them that lists a file of the directory. If the directory has only other tokenizer files, the first of
// all: it reports what is missing. Empty if there is none.
std::string tokenizer_of_directory(const PluginRegistry& registry, const std::string& directory);

struct TokenizerChoice {
  std::string member;       // empty: none
  std::string directory;    // from which it is opened; empty: there is none
  bool is_default = false;  // found by the files of the directory, not named
};

// The tokenizer that [tokenizer] names. If it names no plugin but the run needs a tokenizer, the plugin of the
// program's own folder whose manifest lists a file of tokenizer.path or model.path. Throws a config error if there are
// files but no such plugin for them, or if text is to be read and there are no files.
TokenizerChoice find_tokenizer(const Config& config, const PluginRegistry& registry);

// Creates an instance of this member of kind tokenizer, with the options of [tokenizer].
using MakeTokenizer = std::function<std::unique_ptr<Instance>(const std::string& member)>;

// NULL if there is none. Counts a warning if the tokenizer has more ids than the vocabulary. Throws a config error if
// it begins every text with an id that the vocabulary does not have, or if the weights were trained with another
// tokenizer and tokenizer.force is not set.
std::unique_ptr<PluginTokenizer> open_tokenizer(const Config& config, const MakeTokenizer& make,
                                                const TokenizerChoice& choice, int64_t vocab_size);

// The names of the tokenizer files in model.path, if `tokenizer` was not opened from them. Otherwise empty; also empty
// if it is NULL.
std::vector<std::string> other_tokenizer_files(const Config& config, const PluginTokenizer* tokenizer);

}  // namespace chassis
