// Lists folders and patterns, and tells data files from others by their names.
#include "host/data/data_files.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "host/base/file.hpp"
#include "host/base/printable.hpp"
#include "host/data/file_type.hpp"
#include "host/data/glob.hpp"
#include "host/data/row_files.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

Error path_error(const DataSetConfig& config, const std::string& message) {
  return data_set_error(config, fmt::format("path = \"{}\"{}", config.path, message));
}

PathKind kind_of(const DataSetConfig& config, const std::string& path) {
  try {
    return path_kind(path);
  } catch (const Error& error) {
    throw data_set_error(config, error.message());
  }
}

// An index is read with the .bin file beside it.
bool is_index_of_data(DataFormat format, const std::string& path) {
  if (format != DataFormat::kTokens || !path.ends_with(".idx")) return false;
  const std::string data = path.substr(0, path.size() - std::string_view(".idx").size()) + ".bin";
  return path_kind(data) == PathKind::kFile;
}

// The type under which an entry is counted.
std::string counted_name(const std::string& path, PathKind kind) {
  if (kind == PathKind::kDirectory) return "subfolder";
  if (kind == PathKind::kOther) return "not a regular file";
  fs::path name = fs::path(path).filename();
  std::string extension = name.extension().string();
  if (extension == ".gz" || extension == ".zst") extension = name.stem().extension().string() + extension;
  return extension.empty() ? "no extension" : printable(extension, 20);
}

// Also loads the reader of the file.
void require_file(const DataSetConfig& config, const std::string& path, const std::string& shown) {
  try {
    require_readable(config, path);
    if (file_type(path, config.row_files) == FileType::kRows) config.row_files->prepare(path, used_columns(config));
  } catch (const Error& error) {
    throw path_error(config, shown + error.message()).hint(error.hint_text());
  }
}

class Chooser {
 public:
  explicit Chooser(const DataSetConfig& config) : config_(config) {}

  // `kind` may be that of a link itself.
  void add(const std::string& path, PathKind kind) {
    const bool named_like_data = can_read(config_.format, file_type(path, config_.row_files));
    if (kind == PathKind::kLink && named_like_data) kind = kind_of(config_, path);
    if (named_like_data && kind == PathKind::kAbsent) throw path_error(config_, ": " + path + " is a broken link");
    if (named_like_data && kind == PathKind::kFile)
      files_.push_back(path);
    else if (!is_index_of_data(config_.format, path))
      ++skipped_[counted_name(path, kind)];
  }

  std::vector<std::string> finish(SkippedEntries* skipped, const std::string& where) {
    if (files_.empty()) {
      throw path_error(config_, fmt::format(": {} no {} file{}", where, readable_names(config_),
                                            skipped_.empty() ? "" : "; it has: " + to_text(skipped_)));
    }
    for (const std::string& file : files_) require_file(config_, file, ": " + file + ": ");
    if (skipped) *skipped = std::move(skipped_);
    return std::move(files_);
  }

 private:
  const DataSetConfig& config_;
  std::vector<std::string> files_;
  SkippedEntries skipped_;
};

// A folder that `save_to_disk` of Hugging Face's datasets has written also has .json files, none of which is data.
void refuse_saved_dataset(const DataSetConfig& config, const std::vector<DirectoryEntry>& entries) {
  bool has_arrow = false, has_state = false, has_splits = false;
  for (const DirectoryEntry& entry : entries) {
    has_arrow |= entry.name.ends_with(".arrow");
    has_state |= entry.name == "state.json";
    has_splits |= entry.name == "dataset_dict.json";
  }
  if (!has_splits && !(has_arrow && has_state)) return;
  throw path_error(config, " is a folder of datasets.save_to_disk, whose .arrow files are not read")
      .hint(fmt::format("convert it with Python: datasets.load_from_disk(\"{}\"){}.to_parquet(\"a.parquet\")",
                        config.path, has_splits ? "[\"train\"]" : ""));
}

std::vector<std::string> files_of_folder(const DataSetConfig& config, SkippedEntries* skipped) {
  Chooser chooser(config);
  const std::vector<DirectoryEntry> entries = list_directory(config.path);
  refuse_saved_dataset(config, entries);
  for (const DirectoryEntry& entry : entries) chooser.add((fs::path(config.path) / entry.name).string(), entry.kind);
  return chooser.finish(skipped, "the folder has");
}

std::string content_of(const std::string& folder) {
  SkippedEntries entries;
  for (const DirectoryEntry& entry : list_directory(folder)) ++entries[counted_name(entry.name, entry.kind)];
  return entries.empty() ? "is empty" : "has: " + to_text(entries);
}

std::vector<std::string> files_of_pattern(const DataSetConfig& config, SkippedEntries* skipped) {
  std::vector<std::string> paths;
  const std::string folder = glob_folder(config.path);
  if (path_kind(folder) != PathKind::kDirectory)
    throw path_error(config, fmt::format(": there is no folder {}", folder));
  try {
    paths = glob(config.path);
  } catch (const Error& error) {
    throw path_error(config, ": " + error.message());
  }
  if (paths.empty()) {
    throw path_error(config, fmt::format(": no file matches; {} {}", folder, content_of(folder)))
        .hint("* and ? match inside a name, ** any number of folders");
  }
  Chooser chooser(config);
  for (const std::string& path : paths) {
    const PathKind kind = path_kind_nofollow(path);
    // "**" descends into folders, so they do not count as skipped.
    if (kind == PathKind::kDirectory && config.path.find("**") != std::string::npos) continue;
    chooser.add(path, kind);
  }
  return chooser.finish(skipped, "what matches has");
}

}  // namespace

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
  if (kind == PathKind::kDirectory) return files_of_folder(config, skipped);
  if (kind == PathKind::kAbsent) {
    if (is_glob(config.path)) return files_of_pattern(config, skipped);
    std::error_code ignored;
    throw path_error(config, ": no such file").hint("relative paths start at " + fs::current_path(ignored).string());
  }
  if (kind != PathKind::kFile) throw path_error(config, " is neither a file nor a folder");
  require_file(config, config.path, ": ");
  return {config.path};
}

}  // namespace chassis
