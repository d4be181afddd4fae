// Finds the tokenizer files of a Hugging Face directory by their names, without reading them.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// The names of the tokenizer files in the directory, sorted; empty if there is no such directory.
std::vector<std::string> tokenizer_files(const std::string& model_directory);

// Whether `path` is the directory or inside it. Compares the paths as they are written; links are not resolved.
bool lies_in(const std::string& path, const std::string& directory);

}  // namespace chassis
