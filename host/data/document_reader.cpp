// Lists the files of a set, and chooses the reader of each.
#include "host/data/document_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "host/base/file.hpp"
#include "host/base/printable.hpp"
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

PathKind kind_of(const DataSetConfig& config, const std::string& path) {
  try {
    return path_kind(path);
  } catch (const Error& error) {
    throw data_set_error(config, error.message());
  }
}

// Sorted by name.
std::vector<std::string> files_of_folder(const DataSetConfig& config, SkippedEntries& skipped) {
  std::vector<std::string> files;
  for (const DirectoryEntry& entry : list_directory(config.path)) {
    const std::string path = (fs::path(config.path) / entry.name).string();
    const bool named_like_data = readable(path, config.format);
    const PathKind kind = entry.kind == PathKind::kLink && named_like_data ? kind_of(config, path) : entry.kind;
    if (named_like_data && kind == PathKind::kAbsent) {
      throw data_set_error(config, fmt::format("path = \"{}\": {} is a broken link", config.path, path));
    }
    if (named_like_data && kind == PathKind::kFile) {
      files.push_back(path);
      continue;
    }
    const std::string extension = fs::path(entry.name).extension().string();
    ++skipped[kind == PathKind::kDirectory ? "subfolder"
              : kind == PathKind::kOther   ? "not a regular file"
              : extension.empty()          ? "no extension"
                                           : printable(extension, 20)];
  }
  return files;
}

}  // namespace

void ReadNotes::add(const ReadNotes& more) {
  constexpr size_t kMaxNames = 32;
  num_empty_documents += more.num_empty_documents;
  num_blank_lines += more.num_blank_lines;
  for (const auto& [what, count] : more.changes) changes[what] += count;
  for (const auto& [name, rows] : more.unused_columns) {
    const bool is_listed = unused_columns.contains(name) || unused_columns.size() < kMaxNames;
    unused_columns[is_listed ? name : "(others)"] += rows;
  }
}

std::string to_text(const SkippedEntries& skipped) {
  constexpr size_t kMaxShown = 8;
  std::string text;
  uint64_t others = 0;
  size_t shown = 0;
  for (const auto& [what, count] : skipped) {
    if (++shown > kMaxShown)
      others += count;
    else
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, count);
  }
  return others > 0 ? text + fmt::format(", others {}", others) : text;
}

Error data_set_error(const DataSetConfig& config, std::string message) {
  return Error(ExitCode::kConfig, config.where, fmt::format("{}: {}", config.key, message));
}

std::vector<std::string> data_files(const DataSetConfig& config, SkippedEntries* skipped) {
  const PathKind kind = kind_of(config, config.path);
  if (kind == PathKind::kAbsent) {
    std::error_code ignored;
    throw data_set_error(config, fmt::format("path = \"{}\": no such file", config.path))
        .hint(config.path.find_first_of("*?[") != std::string::npos
                  ? "patterns are not expanded: name a folder, and all its files are read"
                  : "relative paths start at " + fs::current_path(ignored).string());
  }
  if (kind != PathKind::kDirectory) {
    if (kind != PathKind::kFile) {
      throw data_set_error(config, fmt::format("path = \"{}\" is neither a file nor a folder", config.path));
    }
    if (!readable(config.path, config.format)) {
      throw data_set_error(config, fmt::format("path = \"{}\": format \"{}\" reads {} files", config.path,
                                               to_text(config.format), readable_names(config.format)));
    }
    return {config.path};
  }
  SkippedEntries others;
  std::vector<std::string> files = files_of_folder(config, others);
  if (files.empty()) {
    throw data_set_error(
        config, fmt::format("path = \"{}\": the folder has no {} file{}", config.path, readable_names(config.format),
                            others.empty() ? "" : "; it has: " + to_text(others)));
  }
  if (skipped) *skipped = std::move(others);
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
