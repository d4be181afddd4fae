// The names that transformers gives to the files, and their hash.
#include "host/data/tokenizer_files.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 11> kNames = {
    "added_tokens.json",       "chat_template.jinja", "chat_template.json",    "merges.txt",
    "special_tokens_map.json", "spiece.model",        "tokenizer.json",        "tokenizer.model",
    "tokenizer_config.json",   "vocab.json",          "vocab.txt"};

constexpr uint64_t kMaxUnnamedBytes = uint64_t{64} << 20;

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

std::string hash_of_tokenizer_files(const std::string& directory, const std::vector<std::string>& named) {
  std::vector<std::string> names;
  for (const std::string& name : named)
    if (path_kind(directory + "/" + name) == PathKind::kFile) names.push_back(name);
  if (names.empty()) names = tokenizer_files(directory);
  if (names.empty()) {
    std::error_code ignored;
    for (fs::directory_iterator at(directory, ignored), end; !ignored && at != end; at.increment(ignored))
      if (at->is_regular_file(ignored) && at->file_size(ignored) <= kMaxUnnamedBytes)
        names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  Sha256 hash;
  for (const std::string& name : names)
    if (path_kind(directory + "/" + name) == PathKind::kFile)
      hash.update(name + " " + sha256_file(directory + "/" + name) + "\n");
  return names.empty() ? "" : hash.hex();
}

bool lies_in(const std::string& path, const std::string& directory) {
  const fs::path inner = normalized(path), outer = normalized(directory);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace chassis
