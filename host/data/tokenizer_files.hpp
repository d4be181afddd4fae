// Finds the tokenizer files of a Hugging Face directory by their names, and hashes files of a tokenizer.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// The names of the tokenizer files in the directory, sorted; empty if there is no such directory.
std::vector<std::string> tokenizer_files(const std::string& model_directory);

// A hash of the names and contents of the files of `directory` that are in `named`; of the tokenizer files if it has
// none of these; if it has neither, of all files up to 64 MiB. Empty if there is nothing to hash.
std::string hash_of_tokenizer_files(const std::string& directory, const std::vector<std::string>& named);

// Whether `path` is the directory or inside it. Compares the paths as they are written; links are not resolved.
bool lies_in(const std::string& path, const std::string& directory);

}  // namespace chassis
