// The tokenizer that a Hugging Face directory brings along, by the names of its files. Nothing here reads one.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// Those that are in the directory, by name; empty if it is not there.
std::vector<std::string> tokenizer_files(const std::string& model_directory);

// Whether `path` is the directory or lies in it, as both are written.
bool lies_in(const std::string& path, const std::string& directory);

}  // namespace chassis
