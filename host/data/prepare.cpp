// A tokenised set is kept in a folder <name>-<hash> of the cache, which is renamed into place when it is complete. Its
// manifest lists what it was made from, so that a change is found and named, and the set is made again.
#include "host/data/prepare.hpp"

#include <fmt/format.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kStoreVersion = 4;
constexpr size_t kSampleBytes = size_t{64} << 10;
constexpr size_t kMaxNameBytes = 100;  // of a store's folder, without its hash
constexpr auto kLockInterval = 20ms;
constexpr auto kFirstNotice = 2s, kNextNotice = 30s;  // of waiting

// Holds the lock of a folder during its lifetime; the lock file names the process. The file is not removed, since two
// processes could then hold the lock.
class FolderLock {
 public:
  FolderLock(File file, const std::string& data, const std::function<void()>& poll) : file_(std::move(file)) {
    auto next_notice = Clock::now() + kFirstNotice;
    while (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EINTR && errno != EWOULDBLOCK) {
        throw storage_error(fmt::format("{}: cannot lock: {}", file_.path(), std::strerror(errno)));
      }
      if (poll) poll();
      if (Clock::now() >= next_notice) {
        log::warn("{}: waiting for {}, which prepares the same data and holds {}", data, holder(), file_.path());
        next_notice = Clock::now() + kNextNotice;
      }
      std::this_thread::sleep_for(kLockInterval);
    }
    write_holder();
  }

 private:
  std::string holder() const {
    std::string text(256, '\0');
    text.resize(file_.pread_some(text.data(), text.size(), 0));
    text = text.substr(0, text.find('\n'));
    return text.empty() ? "another process" : printable(text);
  }

  void write_holder() {
    const std::string text = fmt::format("process {} on {}\n", ::getpid(), host_name());
    try {
      file_.truncate(0);
      file_.pwrite_exact(text.data(), text.size(), 0);
    } catch (const Error&) {  // the disk is full, but a process that only reads kept data needs no space
    }
  }

  File file_;
};

struct Modified {
  int64_t seconds;
  int64_t nanoseconds;
};

Modified modification_time(const File& file) {
  struct stat info {};
  if (::fstat(file.descriptor(), &info) != 0) {
    throw storage_error(fmt::format("{}: {}", file.path(), std::strerror(errno)));
  }
  return {info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

// Identifies a file without reading all of it.
Json file_key(const std::string& path) {
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  std::string sample(static_cast<size_t>(std::min<uint64_t>(size, kSampleBytes)), '\0');
  file.pread_exact(sample.data(), sample.size(), 0);
  uint64_t hash = hash64(sample, 1);
  file.pread_exact(sample.data(), sample.size(), size - sample.size());
  hash = hash64(sample, hash);
  const Modified modified = modification_time(file);
  Json key;
  key["path"] = printable(path, PATH_MAX);  // JSON holds only UTF-8
  key["bytes"] = size;
  key["modified"] = fmt::format("{}.{:09}", modified.seconds, modified.nanoseconds);
  key["head_and_tail"] = fmt::format("{:016x}", hash);
  return key;
}

// Everything that the ids of a set depend on.
Json store_key(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer) {
  const bool text = config.format == DataFormat::kText;
  Json key;
  key["version"] = kStoreVersion;
  key["format"] = to_text(config.format);
  key["documents"] = text ? to_text(config.documents) : "";
  key["tokenizer"] = text && tokenizer ? tokenizer->fingerprint() : "";
  key["tokenizer_build"] = text && tokenizer ? tokenizer->build() : "";
  key["bos_id"] = text && tokenizer ? tokenizer->bos_id() : -1;
  key["eos_id"] = text && tokenizer ? tokenizer->eos_id() : -1;
  key["files"] = Json::array();
  for (const std::string& file : files) key["files"].push_back(file_key(file));
  return key;
}

std::string show(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// Describes the first difference; empty if there is none.
std::string difference(const Json& kept, const Json& wanted, const std::string& prefix = "") {
  for (const auto& [name, value] : wanted.items()) {
    const auto found = kept.find(name);
    if (found == kept.end()) return fmt::format("{}{} is new", prefix, name);
    if (name == "files") {
      if (!found->is_array() || found->size() != value.size()) return "the number of files changed";
      for (size_t i = 0; i < value.size(); ++i) {
        const std::string file = value.size() > 1 ? show(value[i]["path"]) + ": " : "";
        if (std::string text = difference((*found)[i], value[i], file); !text.empty()) return text;
      }
    } else if (*found != value) {
      return fmt::format("{}{} changed from {} to {}", prefix, name, show(*found), show(value));
    }
  }
  return "";
}

std::string store_folder(const DataSetConfig& config, const std::string& cache_dir) {
  std::error_code failure;
  const std::string absolute = fs::absolute(config.path, failure).lexically_normal().string();
  if (failure) throw data_set_error(config, fmt::format("path = \"{}\": {}", config.path, failure.message()));
  const std::string name = fs::path(absolute).filename().string().substr(0, kMaxNameBytes);
  const std::string id = fmt::format("{}\n{}\n{}", absolute, to_text(config.format), to_text(config.documents));
  return fmt::format("{}/{}-{:08x}", cache_dir, name, hash64(id, 0) >> 32);
}

uint32_t checksum_of(const Json& json) {
  const std::string text = json.dump();
  return crc32c(0, text.data(), text.size());
}

void write_store(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                 const PrepareOptions& options, const Json& key, const std::string& folder) {
  const bool narrow = options.vocab_size > 0 && options.vocab_size <= 0xFFFF;
  TokenStoreWriter writer(folder, narrow ? 2 : 4);
  uint64_t num_bytes = 0, num_bytes_before = 0, reported = 0;
  for (const Json& file : key["files"]) num_bytes += file["bytes"].get<uint64_t>();
  auto report = [&](uint64_t done) {
    reported = done;
    if (!options.progress) return;
    options.progress({config.path, done, num_bytes, writer.facts().num_documents, writer.facts().num_tokens});
  };
  Document document;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto reader = open_documents(files[i], config, tokenizer, options.vocab_size);
    while (reader->next(document)) {
      writer.add(document, i);
      const uint64_t done = num_bytes_before + reader->num_bytes_read();
      if (done - reported >= uint64_t{1} << 20) report(done);
    }
    num_bytes_before += reader->num_bytes_read();
    writer.add_notes(reader->notes());
  }
  report(num_bytes_before);
  const TokenStoreFacts facts = writer.finish();
  if (facts.num_documents == 0) {
    throw data_set_error(config, fmt::format("the corpus is empty: {} has no document", config.path));
  }
  Json manifest;
  manifest["key"] = key;
  manifest["store"] = to_json(facts);
  manifest["store_crc32c"] = checksum_of(manifest["store"]);
  write_file_atomic(folder + "/manifest.json", manifest.dump(2) + "\n");
}

struct KeptStore {
  bool fresh = false;
  bool damaged = false;
  std::string reason;  // why it is not fresh; empty if nothing is kept
  TokenStoreFacts facts;
};

// Fast from the page cache. Logs a line if it takes long, as for a large set on a slow disk.
void compare_with_checksums(const TokenStore& store, const std::string& folder, const std::function<void()>& poll) {
  const auto start = Clock::now();
  bool logged = false;
  store.verify([&] {
    if (poll) poll();
    if (logged || Clock::now() - start < kFirstNotice) return;
    logged = true;
    const TokenStoreFacts& facts = store.facts();
    log::info("comparing {} of kept tokens with their checksums: {}",
              bytes_text(facts.num_tokens * static_cast<uint64_t>(facts.id_bytes)), folder);
  });
}

// Compares the checksums unless `poll` is NULL.
KeptStore find_kept(const std::string& folder, const Json& key, const std::function<void()>* poll) {
  KeptStore kept;
  const std::string manifest_path = folder + "/manifest.json";
  if (path_kind_nofollow(manifest_path) == PathKind::kAbsent) return kept;
  try {
    const Json manifest = parse_json(read_file(manifest_path), manifest_path, ExitCode::kStorage);
    kept.reason = difference(json_at(manifest, "key", manifest_path), key);
    if (!kept.reason.empty()) return kept;
    const Json& facts = json_at(manifest, "store", manifest_path);
    if (checksum_of(facts) != json_int(manifest, "store_crc32c", manifest_path)) {
      throw storage_error(manifest_path + ": its bytes have changed");
    }
    kept.facts = token_store_facts_from_json(facts, manifest_path);
    const TokenStore store(folder, kept.facts, {});
    if (poll) compare_with_checksums(store, folder, *poll);
    kept.fresh = true;
  } catch (const Error& error) {
    if (error.code() == ExitCode::kStopped) throw;
    kept.damaged = true;
    kept.reason = fmt::format("the tokens kept in {} cannot be used: {}", folder, error.message());
  }
  return kept;
}

void require_ids_below(const DataSetConfig& config, const TokenStore& store, int64_t vocab_size) {
  if (vocab_size <= 0 || store.facts().max_id < vocab_size) return;
  throw Error(ExitCode::kConfig, store.origin(store.facts().max_id_document),
              fmt::format("token id {}, the vocabulary has {} ids", store.facts().max_id, vocab_size))
      .hint(fmt::format("the ids of {} do not belong to this model", config.key));
}

void count_skipped(const DataSetConfig& config, const SkippedEntries& skipped) {
  if (skipped.empty()) return;
  uint64_t sum = 0;
  for (const auto& [what, count] : skipped) sum += count;
  counted_warning("data.left_out " + config.path,
                  fmt::format("{}: {} entries of the folder are skipped: {}", config.path, sum, to_text(skipped)), sum);
}

void count_notes(const DataSetConfig& config, const ReadNotes& notes) {
  counted_warning("data.skipped " + config.path,
                  fmt::format("{}: documents without tokens ({}) and blank lines ({}) are skipped", config.path,
                              notes.num_empty_documents, notes.num_blank_lines),
                  notes.num_empty_documents + notes.num_blank_lines);
  for (const auto& [name, rows] : notes.unused_columns) {
    counted_warning(
        fmt::format("data.unused_column {} {}", config.path, name),
        fmt::format("{}: the key \"{}\" is not used by format \"{}\"", config.path, name, to_text(config.format)),
        rows);
  }
}

void make_store(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                const PrepareOptions& options, const Json& key, const std::string& folder) {
  const std::string unfinished = folder + ".unfinished";
  std::error_code ignored;
  fs::remove_all(unfinished, ignored);
  create_directories(unfinished);
  try {
    write_store(config, files, tokenizer, options, key, unfinished);
    fs::remove_all(folder, ignored);
    rename_durably(unfinished, folder);
  } catch (...) {
    fs::remove_all(unfinished, ignored);
    throw;
  }
}

// Adds to storage errors which option names the folder.
template <class Action>
auto with_cache_hint(const std::string& cache_dir, Action action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kStorage || error.message().find(cache_dir) == std::string::npos) throw;
    throw Error(error.code(), error.where(), error.message())
        .hint(fmt::format("tokenised data is kept in data.cache_dir = \"{}\": free some space there, or name a folder "
                          "that you may write to",
                          cache_dir));
  }
}

TokenStore open_or_make(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                        const PrepareOptions& options) {
  const std::string folder = store_folder(config, options.cache_dir);
  const Json key = store_key(config, files, tokenizer);
  const FolderLock lock(with_cache_hint(options.cache_dir,
                                        [&] {
                                          create_directories(options.cache_dir);
                                          return File::open_or_create_own(folder + ".lock");
                                        }),
                        config.path, options.poll);
  KeptStore kept = find_kept(folder, key, options.first_on_machine ? &options.poll : nullptr);
  if (!kept.fresh) {
    const std::string again = fmt::format("{} is tokenised again: {}", config.path, kept.reason);
    if (kept.damaged)
      counted_warning("data.cache_damaged " + config.path, again);
    else if (!kept.reason.empty())
      log::info("{}", again);
    with_cache_hint(options.cache_dir, [&] { make_store(config, files, tokenizer, options, key, folder); });
    kept = find_kept(folder, key, nullptr);
    CHASSIS_CHECK(kept.fresh, kept.reason);
    log::info("{}: its tokens are kept in {} (data.cache_dir)", config.path, folder);
  }
  return TokenStore(folder, kept.facts, files);
}

}  // namespace

TokenStore prepare_data_set(const DataSetConfig& config, const Tokenizer* tokenizer, const PrepareOptions& options) {
  SkippedEntries skipped;
  const std::vector<std::string> files = data_files(config, &skipped);
  if (config.format == DataFormat::kText && !tokenizer) {
    throw data_set_error(config, "format \"text\" needs a tokenizer").hint("set plugin in [tokenizer]");
  }
  TokenStore store = open_or_make(config, files, tokenizer, options);
  const TokenStoreFacts& facts = store.facts();
  require_ids_below(config, store, options.vocab_size);
  if (facts.num_trained_tokens == 0) {
    throw data_set_error(config, fmt::format("all labels of {} are masked: none of its {} tokens would be trained",
                                             config.path, facts.num_tokens))
        .hint("a token is trained if its label is not -100 and a token comes before it in its document");
  }
  if (options.first_on_machine) {
    count_skipped(config, skipped);
    count_notes(config, facts.notes);
  }
  log::debug("{}: {} documents, {} tokens, {} trained", config.path, facts.num_documents, facts.num_tokens,
             facts.num_trained_tokens);
  return store;
}

}  // namespace chassis
