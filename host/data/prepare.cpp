// A tokenised set is kept in a folder <name>-<hash> of the cache, which is renamed into place when it is complete. Its
// manifest lists what it was made from, so that a change is found and named, and the set is made again. Sets of the
// same files for other tokenizers or templates are kept beside it, in <name>-<hash>.2 and so on.
#include "host/data/prepare.hpp"

#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "host/base/control_groups.hpp"
#include "host/base/creation_limit.hpp"
#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/data/data_files.hpp"
#include "host/data/document_pipeline.hpp"
#include "host/data/document_writer.hpp"
#include "host/data/encode_worker.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/store_key.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The most sets of one data set that are kept; data.cache_dir documents it.
constexpr size_t kMaxKept = 3;
constexpr auto kLockInterval = 20ms;
constexpr auto kFirstNotice = 2s, kNextNotice = 30s;  // when waiting is logged

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

uint32_t checksum_of(const Json& json) {
  const std::string text = json.dump();
  return crc32c(0, text.data(), text.size());
}

bool is_whole(const DataSetConfig& config) { return config.part_begin <= 0 && config.part_end >= 1; }

// Says which rows were dropped, and why.
Error dropped_error(const DataSetConfig& config, const TokenStoreFacts& facts, double max_drop_ratio) {
  const uint64_t num_dropped = facts.num_dropped(), num_rows = facts.num_documents + num_dropped;
  std::string reasons, rows;
  for (const auto& [reason, count] : facts.dropped)
    reasons += fmt::format("{}{} ({})", reasons.empty() ? "" : "; ", reason, count);
  for (const std::string& row : facts.first_dropped) rows += "\n  " + row;
  if (facts.num_documents == 0)
    return data_set_error(config, fmt::format("none of the {} rows of {} can be used: {}; the first are:{}", num_rows,
                                              config.path, reasons, rows))
        .hint("correct the rows or the options of [data]");
  return data_set_error(
             config, fmt::format("{} of {} rows of {} ({:.1f} %) cannot be used, data.max_drop_ratio is {:g}: {}; the "
                                 "first are:{}",
                                 num_dropped, num_rows, config.path,
                                 100 * static_cast<double>(num_dropped) / static_cast<double>(num_rows), max_drop_ratio,
                                 reasons, rows))
      .hint("correct the rows or the options of [data]; data.max_drop_ratio = 1 trains on what is left");
}

Error empty_error(const DataSetConfig& config, const TokenStoreFacts& facts, double max_drop_ratio) {
  if (facts.num_dropped() > 0) return dropped_error(config, facts, max_drop_ratio);
  if (is_whole(config) || facts.num_rows == 0)
    return data_set_error(config, fmt::format("the corpus is empty: {} has no documents", config.path));
  return data_set_error(config, fmt::format("none of the {} rows of {} is in the part from {:g} to {:g} that "
                                            "data.eval_fraction assigns to it",
                                            facts.num_rows, config.path, config.part_begin, config.part_end))
      .hint("use more data, or another data.eval_fraction");
}

// One rank of a machine prepares a set, and the others wait for it, so by default it uses all of their cores.
int num_workers(const PrepareOptions& options) {
  const int64_t wanted = options.data ? options.data->num_threads : 0;
  return wanted > 0 ? static_cast<int>(wanted) : usable_threads();
}

double max_drop_ratio(const PrepareOptions& options) { return options.data ? options.data->max_drop_ratio : 1; }

// Runs an action on the folder of kept sets; a storage error gets a hint that says which option names the folder.
template <class Action>
auto in_cache(const std::string& cache_dir, Action action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kStorage) throw;
    throw Error(error.code(), error.where(), error.message())
        .hint(fmt::format("tokenised data is kept in data.cache_dir = \"{}\": free some space there, or name a folder "
                          "that you may write to",
                          cache_dir));
  }
}

// NULL: documents have no sequences.
const SequenceNeeds* sequences_of(const PrepareOptions& options) {
  return options.data && options.data->sequences ? &*options.data->sequences : nullptr;
}

void write_store(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                 const PrepareOptions& options, const Json& key, const std::string& folder) {
  const bool narrow = options.vocab_size > 0 && options.vocab_size <= 0xFFFF;
  TokenStoreWriter writer = in_cache(options.cache_dir, [&] { return TokenStoreWriter(folder, narrow ? 2 : 4); });
  uint64_t num_bytes = 0, done = 0, reported = 0;
  for (const Json& file : key["files"]) num_bytes += file["bytes"].get<uint64_t>();
  const auto report = [&] {
    reported = done;
    if (!options.progress) return;
    options.progress({config.path, done, num_bytes, writer.facts().num_rows, writer.facts().num_documents,
                      writer.facts().num_tokens});
  };
  PipelineOptions pipeline;
  pipeline.open = [&](const std::string& path) { return open_rows(path, config); };
  pipeline.make_worker = [&] { return make_encode_worker(config, options.data, tokenizer, options.vocab_size); };
  pipeline.num_workers = num_workers(options);
  pipeline.poll = options.poll;
  DocumentWriter documents(config, files, options.data, writer);
  run_document_pipeline(files, pipeline, [&](DocumentChunk&& chunk) {
    in_cache(options.cache_dir, [&] {
      for (Document& document : chunk.documents) documents.add(std::move(document), chunk.file);
    });
    for (const DroppedRow& row : chunk.dropped)
      writer.add_dropped(row.reason, line_position(files[chunk.file], row.line));
    writer.add_rows(chunk.file, chunk.num_rows, chunk.content_hash);
    writer.add_notes(chunk.notes);
    done = chunk.num_bytes_read;
    if (done - reported >= uint64_t{1} << 20) report();
  });
  in_cache(options.cache_dir, [&] { documents.finish(); });
  report();
  const TokenStoreFacts facts = in_cache(options.cache_dir, [&] { return writer.finish(); });
  if (facts.num_documents == 0) throw empty_error(config, facts, max_drop_ratio(options));
  Json manifest;
  manifest["key"] = key;
  manifest["store"] = to_json(facts);
  manifest["store_crc32c"] = checksum_of(manifest["store"]);
  in_cache(options.cache_dir, [&] { write_file_atomic(folder + "/manifest.json", manifest.dump(2) + "\n"); });
}

struct KeptStore {
  std::string folder;
  bool exists = false;
  bool fresh = false;
  bool damaged = false;
  bool outdated = false;  // made from other contents of the files, or by another version of this program
  std::string reason;     // why it is not fresh; empty if nothing is kept
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
  kept.folder = folder;
  const std::string manifest_path = folder + "/manifest.json";
  if (path_kind_nofollow(manifest_path) == PathKind::kAbsent) return kept;
  kept.exists = true;
  try {
    const Json manifest = parse_json(read_file(manifest_path), manifest_path, ExitCode::kStorage);
    const Json& made_from = json_at(manifest, "key", manifest_path);
    const auto has_same = [&](const char* name) {
      const auto found = made_from.find(name);
      return found != made_from.end() && *found == key.at(name);
    };
    kept.outdated = !has_same("version") || !has_same("files");
    kept.reason = key_difference(made_from, key);
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

// Counts the changes and drops of the documents in the part of the set.
void count_encoding(const DataSetConfig& config, const TokenStoreFacts& facts) {
  for (const auto& [what, times] : facts.notes.changes)
    counted_warning(fmt::format("data.changes {}: {}", config.path, what), fmt::format("{}: {}", config.path, what),
                    times);
  for (const auto& [reason, rows] : facts.dropped) {
    counted_warning(fmt::format("data.dropped_rows {}: {}", config.path, reason),
                    fmt::format("{}: rows are dropped: {}; the first of all is {}", config.path, reason,
                                facts.first_dropped.empty() ? "unknown" : facts.first_dropped.front()),
                    rows);
  }
}

void make_store(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                const PrepareOptions& options, const Json& key, const std::string& folder) {
  const std::string unfinished = folder + ".unfinished";
  std::error_code ignored;
  fs::remove_all(unfinished, ignored);
  in_cache(options.cache_dir, [&] { create_directories(unfinished); });
  try {
    write_store(config, files, tokenizer, options, key, unfinished);
    fs::remove_all(folder, ignored);
    in_cache(options.cache_dir, [&] { rename_durably(unfinished, folder); });
  } catch (...) {
    fs::remove_all(unfinished, ignored);
    throw;
  }
}

// The permissions of the sources may have been reduced since then.
void restrict_kept(const std::string& folder) {
  for (const DirectoryEntry& entry : list_directory(folder)) apply_creation_limit(folder + "/" + entry.name);
  apply_creation_limit(folder);
}

// Least recently used first.
bool was_used_before(const KeptStore& a, const KeptStore& b) {
  std::error_code ignored;
  return fs::last_write_time(a.folder + "/manifest.json", ignored) <
         fs::last_write_time(b.folder + "/manifest.json", ignored);
}

// The folder in which a set is made, which is none of those that are kept if there is room. Says why it is made.
const KeptStore& replaceable(const DataSetConfig& config, const std::vector<KeptStore>& all) {
  const auto again = [&](const KeptStore& kept) {
    return fmt::format("{} is tokenised again: {}", config.path, kept.reason);
  };
  if (const auto damaged = std::ranges::find(all, true, &KeptStore::damaged); damaged != all.end()) {
    counted_warning("data.cache_damaged " + config.path, again(*damaged));
    return *damaged;
  }
  if (const auto outdated = std::ranges::find(all, true, &KeptStore::outdated); outdated != all.end()) {
    log::info("{}", again(*outdated));
    return *outdated;
  }
  if (const auto absent = std::ranges::find(all, false, &KeptStore::exists); absent != all.end()) {
    if (absent != all.begin())
      log::info("{}; the tokens in {} are kept too", again(*std::prev(absent)), std::prev(absent)->folder);
    return *absent;
  }
  const auto oldest = std::ranges::min_element(all, was_used_before);
  log::info("{}; these tokens are replaced, since {} sets of them are kept", again(*oldest), kMaxKept);
  return *oldest;
}

TokenStore open_or_make(const DataSetConfig& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                        const PrepareOptions& options) {
  const std::string folder = store_folder(config, options.cache_dir);
  const Json key =
      store_key(config, files, tokenizer, encoder_fingerprint(config, options.data, tokenizer), options.poll);
  const FolderLock lock(in_cache(options.cache_dir,
                                 [&] {
                                   create_directories(options.cache_dir);
                                   return File::open_or_create_own(folder + ".lock");
                                 }),
                        config.path, options.poll);
  std::vector<KeptStore> all;
  for (size_t i = 0; i < kMaxKept; ++i) {
    const std::string place = i == 0 ? folder : fmt::format("{}.{}", folder, i + 1);
    const KeptStore& kept = all.emplace_back(find_kept(place, key, options.first_on_machine ? &options.poll : nullptr));
    if (!kept.fresh) continue;
    restrict_kept(place);
    mark_used(place + "/manifest.json");
    return TokenStore(place, kept.facts, files);
  }
  const std::string place = replaceable(config, all).folder;
  make_store(config, files, tokenizer, options, key, place);
  std::error_code ignored;
  for (const KeptStore& other : all)
    if (other.outdated && other.folder != place) fs::remove_all(other.folder, ignored);
  const KeptStore made = find_kept(place, key, nullptr);
  CHASSIS_CHECK(made.fresh, made.reason);
  log::info("{}: its tokens are kept in {} (data.cache_dir)", config.path, place);
  return TokenStore(place, made.facts, files);
}

}  // namespace

TokenStore prepare_data_set(const DataSetConfig& config, const Tokenizer* tokenizer, const PrepareOptions& options) {
  SkippedEntries skipped;
  const std::vector<std::string> files = data_files(config, &skipped);
  if (config.format != DataFormat::kTokens && !tokenizer) {
    throw data_set_error(config, fmt::format("format \"{}\" needs a tokenizer", to_text(config.format)))
        .hint("set plugin in [tokenizer]");
  }
  const CreationLimit limit(shared_read_mode(files));
  TokenStore store = open_or_make(config, files, tokenizer, options);
  const TokenStoreFacts& facts = store.facts();
  require_ids_below(config, store, options.vocab_size);
  const double num_dropped = static_cast<double>(facts.num_dropped());
  if (num_dropped > max_drop_ratio(options) * (num_dropped + static_cast<double>(facts.num_documents)))
    throw dropped_error(config, facts, max_drop_ratio(options));
  const SequenceNeeds* needs = sequences_of(options);
  if (facts.num_trained_tokens == 0 && !(needs && needs->scores)) {
    throw data_set_error(config, fmt::format("all labels of {} are masked: none of its {} tokens would be trained",
                                             config.path, facts.num_tokens))
        .hint("a token is trained if its label is not -100 and a token comes before it in its document");
  }
  if (options.first_on_machine) {
    // Both parts of a set read all of its rows, and the training part counts what was skipped.
    const bool is_eval_part = !is_whole(config) && config.part_begin <= 0;
    if (!is_eval_part) count_skipped(config, skipped), count_notes(config, facts.notes);
    count_encoding(config, facts);
  }
  log::debug("{}: {} documents, {} tokens, {} trained", config.path, facts.num_documents, facts.num_tokens,
             facts.num_trained_tokens);
  return store;
}

}  // namespace chassis
