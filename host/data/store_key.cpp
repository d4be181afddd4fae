// Builds and compares keys.
#include "host/data/store_key.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/data/data_files.hpp"
#include "host/data/document.hpp"
#include "host/data/file_type.hpp"
#include "host/data/row_files.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr int kStoreVersion = 8;
constexpr size_t kSampleBytes = size_t{64} << 10;
constexpr size_t kMaxNameBytes = 100;  // name of a store's folder, without its hash

struct stat status_of(const File& file) {
  struct stat info {};
  if (::fstat(file.descriptor(), &info) != 0) {
    throw storage_error(fmt::format("{}: {}", file.path(), std::strerror(errno)));
  }
  return info;
}

std::string time_text(const timespec& time) { return fmt::format("{}.{:09}", time.tv_sec, time.tv_nsec); }

// The readers of files of rows; empty if there are no such files.
std::string row_reader(const DataSetConfig& config, const std::vector<std::string>& files) {
  std::set<std::string> readers;
  for (const std::string& file : files)
    if (file_type(file, config.row_files) == FileType::kRows)
      readers.insert(config.row_files->prepare(file, used_columns(config)));
  return fmt::format("{}", fmt::join(readers, ", "));
}

// Shortened, since the JSON of an encoder or of columns would fill a screen.
std::string show(const Json& value) {
  return printable(value.is_string() ? value.get<std::string>() : value.dump(), 80);
}

// The object in a text of JSON; any other value is returned unchanged.
Json unpacked(const Json& value) {
  if (!value.is_string()) return value;
  Json inside = parse_json_or_null(value.get_ref<const std::string&>());
  return inside.is_object() ? inside : value;
}

// An encoder notes facts about sequences, and users know the keys from which these follow.
constexpr const char* kOtherObjective =
    "it was made for another train.task, another objective.plugin, or other options of [objective]";

std::string difference(const Json& kept, const Json& wanted, const std::string& prefix = "") {
  for (const auto& [name, value] : wanted.items()) {
    const auto found = kept.find(name);
    if (name == "sequences" && found == kept.end()) return kOtherObjective;
    if (found == kept.end()) return fmt::format("{}{} is new", prefix, name);
    if (name == "files") {
      if (!found->is_array() || found->size() != value.size()) return "the number of files changed";
      for (size_t i = 0; i < value.size(); ++i) {
        const std::string file = value.size() > 1 ? show(value[i]["path"]) + ": " : "";
        if (std::string text = difference((*found)[i], value[i], file); !text.empty()) return text;
      }
    } else if (const Json was = unpacked(*found), is = unpacked(value);
               was != is && was.is_object() && is.is_object()) {
      if (name == "sequences")
        return was.value("version", 0) == is.value("version", 0) ? kOtherObjective
                                                                 : "it was made by another version of the program";
      const std::string text = difference(was, is, prefix + name + " ");
      return text.empty() ? fmt::format("{}{} has fewer parts", prefix, name) : text;
    } else if (*found != value) {
      return fmt::format("{}{} changed from {} to {}", prefix, name, show(*found), show(value));
    }
  }
  return "";
}

}  // namespace

// Identifies a file without reading all of it. Programs can set the time of modification, as `rsync -t` and `cp -p` do;
// the time of the last change of status is the kernel's.
Json file_key(const std::string& path) {
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  std::string sample(static_cast<size_t>(std::min<uint64_t>(size, kSampleBytes)), '\0');
  file.pread_exact(sample.data(), sample.size(), 0);
  uint64_t hash = hash64(sample, 1);
  file.pread_exact(sample.data(), sample.size(), size - sample.size());
  hash = hash64(sample, hash);
  const struct stat info = status_of(file);
  Json key;
  key["path"] = printable(path, PATH_MAX);  // JSON holds only UTF-8
  key["bytes"] = size;
  key["modified"] = time_text(info.st_mtim);
  key["head_and_tail"] = fmt::format("{:016x}", hash);
  key["inode"] = static_cast<uint64_t>(info.st_ino);
  key["status_changed"] = time_text(info.st_ctim);
  return key;
}

Json store_key(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
               const std::string& encoder, const std::function<void()>& poll) {
  const bool encodes = config.format != DataFormat::kTokens && tokenizer;
  Json key;
  key["version"] = kStoreVersion;
  key["format"] = to_text(config.format);
  key["documents"] = config.format == DataFormat::kText ? to_text(config.documents) : "";
  key["targets"] = config.has_targets;
  if (config.needs_answer) key["needs_answer"] = true;
  key["columns"] = config.columns;
  key["tags"] = config.tags;
  if (!config.classes.empty()) key["classes"] = config.classes;
  if (config.split_pairs) key["split_pairs"] = true;
  if (config.format == DataFormat::kPreference && !config.reads_margins) key["margins"] = false;
  key["part"] = {config.part_begin, config.part_end};
  key["encoder"] = encoder;
  key["tokenizer"] = encodes ? tokenizer->fingerprint() : "";
  key["tokenizer_build"] = encodes ? tokenizer->build() : "";
  key["bos_id"] = encodes ? tokenizer->bos_id() : -1;
  key["eos_id"] = encodes ? tokenizer->eos_id() : -1;
  if (const std::string rows = row_reader(config, files); !rows.empty()) key["row_reader"] = rows;
  key["files"] = Json::array();
  for (const std::string& file : files) {
    if (poll) poll();
    key["files"].push_back(file_key(file));
  }
  return key;
}

std::string key_difference(const Json& kept, const Json& wanted) { return difference(kept, wanted); }

std::string store_folder(const DataSetConfig& config, const std::string& cache_dir) {
  std::error_code failure;
  const std::string absolute = fs::absolute(config.path, failure).lexically_normal().string();
  if (failure) throw data_set_error(config, fmt::format("path = \"{}\": {}", config.path, failure.message()));
  const std::string name = fs::path(absolute).filename().string().substr(0, kMaxNameBytes);
  std::string id = fmt::format("{}\n{}\n{}", absolute, to_text(config.format), to_text(config.documents));
  for (const auto* names : {&config.columns, &config.tags})
    for (const auto& [name, other] : *names) id += fmt::format("\n{}\n{}", name, other);
  if (config.part_begin > 0 || config.part_end < 1) id += fmt::format("\n{} to {}", config.part_begin, config.part_end);
  return fmt::format("{}/{}-{:08x}", cache_dir, name, hash64(id, 0) >> 32);
}

}  // namespace chassis
