// Reads data files in blocks of rows, and writes the new directory under another name first.
#include "host/text/tokenizer_training.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>
#include <variant>

#include "host/base/creation_limit.hpp"
#include "host/base/file.hpp"
#include "host/config/paths.hpp"
#include "host/data/data_files.hpp"
#include "host/data/record_reader.hpp"
#include "host/text/plugin_rows.hpp"
#include "host/text/run_tokenizer.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// Rows are passed in blocks, each row followed by a line break, so that there are few calls.
constexpr size_t kTextBlockBytes = size_t{64} << 10;

// The texts of files, one file after the other.
class TrainingTexts {
 public:
  using Progress = std::function<void(uint64_t, uint64_t, std::string_view)>;

  TrainingTexts(const std::vector<std::string>& paths, RowFiles& row_files, const Progress& progress)
      : progress_(progress), row_files_(row_files), parser_(make_row_parser(set_of(""), 0)) {
    for (const std::string& path : paths)
      for (const std::string& file : data_files(set_of(path))) files_.push_back(file);
    for (const std::string& file : files_) num_bytes_ += File::open_read(file).size();
  }

  bool next(std::string_view& text) {
    text_.clear();
    while (text_.size() < kTextBlockBytes && read_row()) {
    }
    num_text_bytes_ += text_.size();
    text = text_;
    return !text_.empty();
  }

  const std::vector<std::string>& files() const { return files_; }
  uint64_t num_text_bytes() const { return num_text_bytes_; }

 private:
  DataSetConfig set_of(const std::string& path) const {
    DataSetConfig set;
    set.path = path;
    set.row_files = &row_files_;
    set.key = "tokenizer train";
    return set;
  }
  // Appends the next row to text_. False at the end of the files.
  bool read_row() {
    RawRow row;
    while (true) {
      if (!reader_) {
        if (next_file_ == files_.size()) return false;
        reader_ = open_rows(files_[next_file_], set_of(files_[next_file_]));
        ++next_file_;
      }
      const std::string& file = files_[next_file_ - 1];
      const bool found = reader_->next(row);
      progress_(num_bytes_before_ + reader_->num_bytes_read(), num_bytes_, file);
      if (found) {
        const Record record = parser_->parse(row, file);
        text_ += std::get<TextRecord>(record).text;
        text_ += '\n';
        return true;
      }
      num_bytes_before_ += reader_->num_bytes_read();
      reader_.reset();
    }
  }

  const Progress& progress_;
  RowFiles& row_files_;
  std::unique_ptr<RowParser> parser_;
  std::vector<std::string> files_;
  size_t next_file_ = 0;
  std::unique_ptr<RowReader> reader_;
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
    rename_durably(temporary_, path_);  // may replace an empty directory
    temporary_.clear();
  }

 private:
  std::string path_, temporary_;
};

bool trains(PluginRegistry& registry, const std::string& id) {
  const auto instance = registry.create_default("tokenizer", id);
  const auto* table = instance->interface_or_null<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID);
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
  PluginRows row_files(registry);
  TrainingTexts texts(paths, row_files, progress);
  const CreationLimit limit(shared_read_mode(texts.files()));
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

std::string find_tokenizer_directory(const std::string& given) {
  std::string directory = given;
  if (const auto problem = expand_hub(directory)) throw config_error("'" + given + "': " + *problem);
  if (path_kind(directory) != PathKind::kDirectory) throw config_error("'" + directory + "' is not a directory");
  return directory;
}

std::unique_ptr<PluginTokenizer> open_tokenizer_of(PluginRegistry& registry, const std::string& directory,
                                                   const std::string& named) {
  const std::string member = named.empty() ? tokenizer_of_directory(registry, directory) : named;
  if (member.empty())
    throw config_error("no tokenizer that opens the files of '" + directory + "' is installed with this program")
        .hint("name one with --plugin; `chassis plugins list` shows the tokenizers");
  return std::make_unique<PluginTokenizer>(registry.open("tokenizer", member), directory);
}

}  // namespace chassis
