// Reads text files in blocks of whole lines, and writes the new directory under another name first.
#include "host/session/tokenizer_training.hpp"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/config/paths.hpp"
#include "host/data/file_type.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/record_reader.hpp"
#include "host/session/run_tokenizer.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// Pairs across lines are merged too, so lines come together.
constexpr size_t kBlockBytes = size_t{64} << 10;

// The texts of a file.
class TextFile {
 public:
  virtual ~TextFile() = default;
  virtual bool next(std::string& text) = 0;
  virtual uint64_t num_bytes_read() const = 0;
};

class LinesOfText final : public TextFile {
 public:
  explicit LinesOfText(const std::string& path) : lines_(open_bytes(path)) {}

  bool next(std::string& text) override {
    text.clear();
    for (std::string_view line; text.size() < kBlockBytes && lines_.next(line);) text.append(line) += '\n';
    return !text.empty();
  }
  uint64_t num_bytes_read() const override { return lines_.num_bytes_read(); }

 private:
  LineReader lines_;
};

class RowsOfText final : public TextFile {
 public:
  explicit RowsOfText(const std::string& path)
      : path_(path), rows_(open_rows(path, DataSetConfig())), parser_(make_row_parser(DataSetConfig(), 0)) {}

  bool next(std::string& text) override {
    if (!rows_->next(row_)) return false;
    text = std::get<TextRecord>(parser_->parse(row_, path_)).text;
    return true;
  }
  uint64_t num_bytes_read() const override { return rows_->num_bytes_read(); }

 private:
  std::string path_;
  std::unique_ptr<RowReader> rows_;
  std::unique_ptr<RowParser> parser_;
  RawRow row_;
};

std::unique_ptr<TextFile> open_text_file(const std::string& path) {
  const FileType type = file_type(path);
  const bool has_rows = type == FileType::kJsonLines || type == FileType::kJsonArray || type == FileType::kCsv;
  if (has_rows) return std::make_unique<RowsOfText>(path);
  return std::make_unique<LinesOfText>(path);
}

// The texts of files, one file after the other.
class TrainingTexts {
 public:
  using Progress = std::function<void(uint64_t, uint64_t, std::string_view)>;

  TrainingTexts(const std::vector<std::string>& paths, const Progress& progress) : progress_(progress) {
    for (const std::string& path : paths) {
      if (path_kind(path) == PathKind::kDirectory) {
        DataSetConfig set;
        set.path = path;
        set.key = path;
        for (const std::string& file : data_files(set)) files_.push_back(file);
      } else {
        files_.push_back(path);
      }
    }
    for (const std::string& file : files_) num_bytes_ += File::open_read(file).size();
  }

  bool next(std::string_view& text) {
    while (true) {
      if (!file_) {
        if (files_.empty()) return false;
        file_ = open_text_file(files_.front());
      }
      const bool found = file_->next(text_);
      progress_(num_bytes_before_ + file_->num_bytes_read(), num_bytes_, files_.front());
      if (found) {
        num_text_bytes_ += text_.size();
        text = text_;
        return true;
      }
      num_bytes_before_ += file_->num_bytes_read();
      file_.reset();
      files_.pop_front();
    }
  }

  uint64_t num_text_bytes() const { return num_text_bytes_; }

 private:
  const Progress& progress_;
  std::deque<std::string> files_;  // the first one is open
  std::unique_ptr<TextFile> file_;
  uint64_t num_bytes_ = 0, num_bytes_before_ = 0, num_text_bytes_ = 0;
  std::string text_;
};

// A directory under another name until it is complete.
class NewDirectory {
 public:
  explicit NewDirectory(std::string path) : path_(std::move(path)) {
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
    const PathKind kind = path_kind_nofollow(path_);
    if (kind == PathKind::kAbsent || (kind == PathKind::kDirectory && list_directory(path_).empty())) return;
    throw config_error("'" + path_ + "' exists" + (kind == PathKind::kDirectory ? " and is not empty" : ""))
        .hint("name a new directory, or remove it first");
  }
  ~NewDirectory() {
    std::error_code ignored;
    if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  }
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  void add(const std::string& name, std::string_view content) {
    if (temporary_.empty()) {
      const std::string parent = fs::path(path_).parent_path().string();
      if (!parent.empty()) create_directories(parent);
      temporary_ = temporary_name(path_);
      create_directories(temporary_);
    }
    write_file_atomic(temporary_ + "/" + name, content);
  }
  void publish() {
    fsync_directory(temporary_);
    rename_durably(temporary_, path_);  // also onto an empty directory
    temporary_.clear();
  }

 private:
  std::string path_, temporary_;
};

bool trains(PluginRegistry& registry, const std::string& id) {
  const auto instance = registry.create_default("tokenizer", id);
  const auto* table = instance->interface_or_null<chassis_tokenizer_2_t>(CHASSIS_TOKENIZER_2_ID);
  return table != nullptr && table->train != nullptr;
}

}  // namespace

std::string training_tokenizer(PluginRegistry& registry, const std::string& named) {
  if (!named.empty()) return named;
  for (const std::string& id : own_file_tokenizers(registry))
    if (trains(registry, id)) return id;
  throw config_error("no tokenizer that trains a vocabulary is installed with this program")
      .hint("name one with --plugin; `chassis plugins list` shows the tokenizers");
}

TrainedTokenizer train_tokenizer(PluginRegistry& registry, const std::string& member, const VocabularyOptions& options,
                                 const std::vector<std::string>& paths, const std::string& out,
                                 const std::function<void(uint64_t, uint64_t, std::string_view)>& progress) {
  NewDirectory directory(out);
  TrainingTexts texts(paths, progress);
  TrainedTokenizer trained;
  const auto instance = registry.open("tokenizer", member);
  train_vocabulary(
      *instance, options, [&](std::string_view& text) { return texts.next(text); },
      [&](const std::string& name, std::string_view content) {
        directory.add(name, content);
        trained.files.push_back(name);
      });
  directory.publish();
  trained.num_bytes = texts.num_text_bytes();
  return trained;
}

std::unique_ptr<PluginTokenizer> open_tokenizer_of(PluginRegistry& registry, std::string directory,
                                                   const std::string& named) {
  const std::string given = directory;
  if (const auto problem = expand_hub(directory)) throw config_error("'" + given + "': " + *problem);
  if (path_kind(directory) != PathKind::kDirectory) throw config_error("'" + directory + "' is not a directory");
  const std::string member = named.empty() ? tokenizer_of_directory(registry, directory) : named;
  if (member.empty())
    throw config_error("no tokenizer that opens the files of '" + directory + "' is installed with this program")
        .hint("name one with --plugin; `chassis plugins list` shows the tokenizers");
  return std::make_unique<PluginTokenizer>(registry.open("tokenizer", member), directory);
}

}  // namespace chassis
