// Reads text files in blocks of whole lines, and writes the new directory under another name first.
#include "host/session/tokenizer_training.hpp"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/config/paths.hpp"
#include "host/data/document_reader.hpp"
#include "host/data/line_reader.hpp"
#include "host/session/run_tokenizer.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// Pairs across lines are merged too, so lines come together.
constexpr size_t kBlockBytes = size_t{64} << 10;

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
      if (!reader_) {
        if (files_.empty()) return false;
        is_json_ = files_.front().ends_with(".jsonl");
        reader_.emplace(File::open_read(files_.front()), files_.front());
        files_.pop_front();
      }
      const bool found = is_json_ ? read_row() : read_block();
      progress_(num_bytes_before_ + reader_->num_bytes_read(), num_bytes_, reader_->name());
      if (found) {
        num_text_bytes_ += text_.size();
        text = text_;
        return true;
      }
      num_bytes_before_ += reader_->num_bytes_read();
      reader_.reset();
    }
  }

  uint64_t num_text_bytes() const { return num_text_bytes_; }

 private:
  bool read_block() {
    text_.clear();
    std::string_view line;
    while (text_.size() < kBlockBytes && reader_->next(line)) {
      text_ += line;
      text_ += '\n';
    }
    return !text_.empty();
  }
  bool read_row() {
    std::string_view line;
    while (reader_->next(line)) {
      if (is_blank(line)) continue;
      const std::string where = reader_->position().text();
      const Json row = parse_json(line, where);
      if (!row.is_object()) throw Error(ExitCode::kConfig, reader_->position(), "is not a JSON object");
      text_ = json_string(row, "text", where);
      return true;
    }
    return false;
  }

  const Progress& progress_;
  std::deque<std::string> files_;
  std::optional<LineReader> reader_;
  bool is_json_ = false;
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
