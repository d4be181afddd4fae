// Trains a tokenizer from files of text, and opens tokenizers outside of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/plugin/registry.hpp"
#include "host/text/plugin_tokenizer.hpp"

namespace chassis {

struct TrainedTokenizer {
  std::vector<std::string> files;  // names, in the new directory
  uint64_t num_bytes = 0;          // bytes of text
};

// The member to use: `named`, or else the first of the program's own folder that can train. Throws a config error if
// there is none.
std::string training_tokenizer(PluginRegistry& registry, const std::string& named);
// [control] Makes a vocabulary from data files of format "text", or folders and patterns of them, and writes its files
// as the new directory `out`, which appears complete or not at all. Throws a config error if `out` has something in it,
// or at a line that is not UTF-8. Memory does not depend on the size of the files. `progress`: bytes read and in total,
// and the file.
TrainedTokenizer train_tokenizer(PluginRegistry& registry, const std::string& member, const VocabularyOptions& options,
                                 const std::vector<std::string>& paths, const std::string& out,
                                 const std::function<void(uint64_t, uint64_t, std::string_view)>& progress);

// A directory, which may be given as "hub:Org/Name". Throws a config error if there is none.
std::string find_tokenizer_directory(const std::string& given);
// Opens the tokenizer of a directory. `named`: the member; empty: by the files.
std::unique_ptr<PluginTokenizer> open_tokenizer_of(PluginRegistry& registry, const std::string& directory,
                                                   const std::string& named);

}  // namespace chassis
