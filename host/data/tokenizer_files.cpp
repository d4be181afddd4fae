// The names that transformers gives to the files.
#include "host/data/tokenizer_files.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "host/base/file.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 11> kNames = {
    "added_tokens.json",       "chat_template.jinja", "chat_template.json",    "merges.txt",
    "special_tokens_map.json", "spiece.model",        "tokenizer.json",        "tokenizer.model",
    "tokenizer_config.json",   "vocab.json",          "vocab.txt"};

fs::path normalized(const std::string& path) {
  std::error_code ignored;
  const fs::path normal = fs::absolute(path, ignored).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();  // "models/x/" is "models/x"
}

}  // namespace

std::vector<std::string> tokenizer_files(const std::string& model_directory) {
  std::vector<std::string> found;
  if (path_kind(model_directory) != PathKind::kDirectory) return found;
  for (std::string_view name : kNames) {
    if (path_kind_nofollow(model_directory + "/" + std::string(name)) != PathKind::kAbsent) found.emplace_back(name);
  }
  return found;
}

bool lies_in(const std::string& path, const std::string& directory) {
  const fs::path inner = normalized(path), outer = normalized(directory);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace chassis
