// Changes the vocabulary in copies of a tokenizer's files: two ids of a JSON vocabulary exchanged, else a line removed.
#include <algorithm>
#include <filesystem>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/conformance/tokenizer_checks.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// The host's own JSON keeps the order of keys, and is slow with many of them.
using AnyOrder = nlohmann::json;

constexpr uintmax_t kMaxBytes = uintmax_t{32} << 20;
constexpr const char* kFirst = "e";
constexpr const char* kSecond = "t";

// All files of the directory; empty if they are too large.
TokenizerFiles files_of(const std::string& directory) {
  TokenizerFiles files;
  uintmax_t num_bytes = 0;
  std::error_code ignored;
  for (fs::directory_iterator at(directory, ignored), end; !ignored && at != end; at.increment(ignored)) {
    if (!at->is_regular_file(ignored) || at->path().extension() == ".safetensors") continue;
    if ((num_bytes += at->file_size(ignored)) > kMaxBytes) return {};
    files.emplace(at->path().filename().string(), read_file(at->path().string()));
  }
  return files;
}

// Exchanges the ids of two letters: {"e": 69, "t": 84, …}, or the letters of [["e", -3.1], ["t", -3.2], …].
bool exchange(AnyOrder& vocabulary) {
  if (vocabulary.is_object() && vocabulary.contains(kFirst) && vocabulary.contains(kSecond)) {
    std::swap(vocabulary[kFirst], vocabulary[kSecond]);
    return true;
  }
  if (!vocabulary.is_array()) return false;
  const auto find = [&](const char* text) -> AnyOrder* {
    for (AnyOrder& entry : vocabulary)
      if (entry.is_array() && !entry.empty() && entry.front() == text) return &entry.front();
    return nullptr;
  };
  AnyOrder *const first = find(kFirst), *const second = find(kSecond);
  if (first != nullptr && second != nullptr) std::swap(*first, *second);
  return first != nullptr && second != nullptr;
}

bool alter_json(std::string& content) {
  AnyOrder json = AnyOrder::parse(content, nullptr, false);
  if (!json.is_object()) return false;
  const bool is_nested = json.contains("model") && json["model"].is_object() && json["model"].contains("vocab");
  if (!exchange(is_nested ? json["model"]["vocab"] : json)) return false;
  content = json.dump();
  return true;
}

// Returns the line; empty if there is none.
std::string remove_last_line(std::string& content) {
  if (content.find('\0') != std::string::npos) return "";
  const size_t end = content.find_last_not_of("\r\n");
  if (end == std::string::npos) return "";
  const size_t before = content.find_last_of('\n', end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const std::string line = content.substr(begin, end + 1 - begin);
  content.resize(begin);
  return line;
}

}  // namespace

std::vector<AlteredFiles> altered_files(const std::string& directory, const std::vector<std::string>& named) {
  const TokenizerFiles files = files_of(directory);
  std::vector<std::string> names;
  for (const std::string& name : named)
    if (files.contains(name)) names.push_back(name);
  if (names.empty())
    for (const auto& [name, content] : files) names.push_back(name);
  std::vector<AlteredFiles> out;
  for (const std::string& name : names) {
    AlteredFiles altered{"", files, {}};
    std::string& content = altered.files[name];
    if (alter_json(content)) {
      altered.what = std::string("the ids of '") + kFirst + "' and '" + kSecond + "' exchanged in " + name;
      altered.texts = {kFirst, kSecond, "q e t", "zzetqx"};
    } else if (const std::string line = remove_last_line(content); !line.empty()) {
      altered.what = "the last line of " + name + " removed";
      altered.texts = {line, "a " + line + " b"};
    } else {
      continue;
    }
    out.push_back(std::move(altered));
  }
  return out;
}

}  // namespace chassis
