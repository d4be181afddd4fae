// Which files a set has and how each is read.
#include "host/data/document_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "host/data/json_reader.hpp"
#include "host/data/text_reader.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

bool is_json_lines(const std::string& path) { return path.ends_with(".jsonl"); }
bool is_plain_text(const std::string& path) { return path.ends_with(".txt"); }

bool readable(const std::string& path, DataFormat format) {
  return is_json_lines(path) || (format == DataFormat::kText && is_plain_text(path));
}

std::string_view readable_names(DataFormat format) { return format == DataFormat::kText ? ".txt or .jsonl" : ".jsonl"; }

}  // namespace

Error data_set_error(const DataSetConfig& config, std::string message) {
  return Error(ExitCode::kConfig, config.where, fmt::format("{}: {}", config.key, message));
}

std::vector<std::string> data_files(const DataSetConfig& config) {
  std::error_code failure;
  const fs::file_status status = fs::status(config.path, failure);
  if (!fs::exists(status)) {
    throw data_set_error(config, fmt::format("path = \"{}\": no such file", config.path))
        .hint("a relative path starts at " + fs::current_path(failure).string());
  }
  if (!fs::is_directory(status)) {
    if (!fs::is_regular_file(status)) {
      throw data_set_error(config, fmt::format("path = \"{}\" is neither a file nor a folder", config.path));
    }
    if (!readable(config.path, config.format)) {
      throw data_set_error(config, fmt::format("path = \"{}\": format \"{}\" reads {} files", config.path,
                                               to_text(config.format), readable_names(config.format)));
    }
    return {config.path};
  }
  std::vector<std::string> files;
  fs::directory_iterator entries(config.path, failure);
  if (failure) {
    throw data_set_error(config, fmt::format("path = \"{}\": {}", config.path, failure.message()));
  }
  for (const fs::directory_entry& entry : entries) {
    if (entry.is_regular_file(failure) && readable(entry.path().string(), config.format)) {
      files.push_back(entry.path().string());
    }
  }
  if (files.empty()) {
    throw data_set_error(
        config, fmt::format("path = \"{}\": the folder has no {} file", config.path, readable_names(config.format)));
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<DocumentReader> open_documents(const std::string& path, const DataSetConfig& config,
                                               const Tokenizer* tokenizer, int64_t vocab_size) {
  if (config.format == DataFormat::kTokens) return open_token_rows(path, vocab_size);
  if (!tokenizer) {
    throw data_set_error(config, "format \"text\" needs a tokenizer").hint("set plugin in [tokenizer]");
  }
  TextEncoder encoder(*tokenizer, vocab_size);
  if (is_json_lines(path)) return open_text_rows(path, std::move(encoder));
  return open_plain_text(path, config.documents, std::move(encoder));
}

}  // namespace chassis
