#include "host/data/prepare.hpp"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/data/store_key.hpp"
#include "tests/host/data/support.hpp"
#include "tests/support/one_core.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

struct Prepare : testing::Test {
  TempFolder folder;
  int calls = 0;

  PrepareOptions options(int64_t vocab_size = 0) {
    return {folder.path() + "/cache", vocab_size, [this](const PrepareProgress&) { ++calls; }};
  }
  size_t num_folders() const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder.path() + "/cache")) count += entry.is_directory();
    return count;
  }
  // The folder of the only set that is kept.
  std::string kept() const {
    for (const auto& entry : fs::directory_iterator(folder.path() + "/cache")) {
      if (entry.is_directory()) return entry.path().string();
    }
    return "";
  }
};

// Overwrites in place, so that size and name stay as they are.
void change_byte(const std::string& path, uint64_t offset, int mask) {
  File file = File::open_write(path);
  char byte = 0;
  file.pread_exact(&byte, 1, offset);
  byte = static_cast<char>(byte ^ mask);
  file.pwrite_exact(&byte, 1, offset);
}

std::vector<int32_t> values_of(const TokenStore& store) {
  std::vector<int32_t> values(2 * store.facts().num_tokens);
  store.read_ids(0, std::span(values).first(store.facts().num_tokens));
  store.read_labels(0, std::span(values).last(store.facts().num_tokens));
  return values;
}

TEST_F(Prepare, KeepsASetAndUsesItAgain) {
  const std::string path = folder.write("a.txt", "one\ntwo\n");
  const ByteTokenizer tokenizer;
  const TokenStore made = prepare_data_set(text_set(path), &tokenizer, options());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(made.facts().num_tokens, 8u);
  const TokenStore kept = prepare_data_set(text_set(path), &tokenizer, options());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(kept.facts().content_hash, made.facts().content_hash);
  EXPECT_EQ(kept.origin(1).text(), path + ":2");
  EXPECT_EQ(num_folders(), 1u);
}

TEST_F(Prepare, KeepsPrivateTextsPrivate) {
  const std::string path = folder.write("a.txt", "one\ntwo\n");
  const ByteTokenizer tokenizer;
  const auto modes = [&] {
    std::set<unsigned> found = {static_cast<unsigned>(fs::status(kept()).permissions()) & 0077 & ~0011u};
    for (const auto& entry : fs::directory_iterator(kept()))
      found.insert(static_cast<unsigned>(entry.status().permissions()) & 0077);
    return found;
  };
  const mode_t umask_before = ::umask(0022);
  prepare_data_set(text_set(path), &tokenizer, options());
  EXPECT_EQ(modes(), std::set<unsigned>({0044}));
  fs::permissions(path, fs::perms(0640));
  prepare_data_set(text_set(path), &tokenizer, options());  // finds the kept tokens
  EXPECT_EQ(modes(), std::set<unsigned>({0040}));
  fs::remove_all(kept());
  fs::permissions(path, fs::perms(0600));
  prepare_data_set(text_set(path), &tokenizer, options());
  EXPECT_EQ(modes(), std::set<unsigned>({0}));
  ::umask(umask_before);
}

TEST_F(Prepare, MakesAStaleSetAgainAndSaysWhy) {
  const std::string log_path = folder.path() + "/log.txt";
  log::add_file(log_path);
  const std::string path = folder.write("a.txt", "one\n");
  const ByteTokenizer tokenizer;
  prepare_data_set(text_set(path), &tokenizer, options());
  folder.write("a.txt", "three\n");
  EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).facts().num_tokens, 6u);
  EXPECT_EQ(calls, 2);
  const ByteTokenizer other(-1, 256, "other bytes");
  prepare_data_set(text_set(path), &other, options());
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(num_folders(), 2u);
  for (const auto& entry : fs::directory_iterator(folder.path() + "/cache")) {
    if (entry.is_directory()) fs::resize_file(entry.path() / "ids.bin", 1);
  }
  prepare_data_set(text_set(path), &other, options());
  EXPECT_EQ(calls, 4);
  log::close_files();
  const std::string text = read_file(log_path);
  EXPECT_TRUE(contains(text, "a.txt is tokenised again"));
  EXPECT_TRUE(contains(text, "bytes changed from 4 to 6"));
  EXPECT_TRUE(contains(text, "tokenizer changed from bytes to other bytes"));
  EXPECT_TRUE(contains(text, "has 1 bytes, its manifest says"));
}

TEST_F(Prepare, KeepsTheTokensOfThreeTokenizersSideBySide) {
  const std::string path = folder.write("a.txt", "one\n");
  const ByteTokenizer tokenizers[] = {ByteTokenizer(-1, 256, "first"), ByteTokenizer(-1, 256, "second"),
                                      ByteTokenizer(-1, 256, "third"), ByteTokenizer(-1, 256, "fourth")};
  for (int round = 0; round < 3; ++round)
    for (size_t i = 0; i < 3; ++i) prepare_data_set(text_set(path), &tokenizers[i], options());
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(num_folders(), 3u);
  for (int round = 0; round < 2; ++round) prepare_data_set(text_set(path), &tokenizers[3], options());
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(num_folders(), 3u);
  folder.write("a.txt", "another\n");
  prepare_data_set(text_set(path), &tokenizers[0], options());
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(num_folders(), 1u) << "tokens of a text that is gone";
}

TEST(StoreKey, ADifferenceInsideATextOfJsonIsShort) {
  const std::string long_text(500, 'x');
  const auto key = [&](const std::string& name) {
    return Json{{"encoder", Json{{"template", name}, {"variables", long_text}}.dump()}};
  };
  EXPECT_EQ(key_difference(key("chatml"), key("alpaca")), "encoder template changed from chatml to alpaca");
  EXPECT_LT(key_difference({{"encoder", long_text}}, {{"encoder", "y"}}).size(), 200u);
  EXPECT_EQ(key_difference(key("chatml"), key("chatml")), "");
}

TEST(StoreKey, AnotherObjectiveIsNamedByItsKeysInTheConfiguration) {
  const auto key = [](const Json& encoder) { return Json{{"encoder", encoder.dump()}}; };
  const Json pairs = key({{"sequences", {{"version", 1}, {"scores", false}}}});
  const std::string text = key_difference(key({{"sequences", {{"version", 1}, {"scores", true}}}}), pairs);
  EXPECT_TRUE(contains(text, "another train.task, another objective.plugin")) << text;
  EXPECT_EQ(key_difference(key({{"adds_bos", true}}), pairs), text) << "it was made without an objective";
  EXPECT_TRUE(contains(key_difference(key({{"sequences", {{"version", 0}, {"scores", false}}}}), pairs), "version"));
}

TEST_F(Prepare, SeesAChangeThatKeepsSizeAndTime) {
  const std::string rows(100000, 'r');
  const std::string path = folder.write("a.txt", rows + "A" + rows);
  const auto time = fs::last_write_time(path);
  const ByteTokenizer tokenizer;
  const std::string first = prepare_data_set(text_set(path), &tokenizer, options()).facts().content_hash;
  folder.write("a.txt", rows + "B" + rows);
  fs::last_write_time(path, time);
  EXPECT_NE(prepare_data_set(text_set(path), &tokenizer, options()).facts().content_hash, first);
}

TEST_F(Prepare, GivesACopyOfAFileTheSameContent) {
  const std::string path = folder.write("a.txt", "one\n");
  const auto time = fs::last_write_time(path);
  const ByteTokenizer tokenizer;
  const std::string first = prepare_data_set(text_set(path), &tokenizer, options()).facts().content_hash;
  fs::copy_file(path, folder.path() + "/copy.txt");
  fs::rename(folder.path() + "/copy.txt", path);
  fs::last_write_time(path, time);
  EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).facts().content_hash, first);
}

TEST_F(Prepare, KeepsOneSetPerWayOfReadingIt) {
  const std::string path = folder.write("a.txt", "one\ntwo\n");
  const ByteTokenizer tokenizer;
  EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).num_documents(), 2u);
  EXPECT_EQ(prepare_data_set(text_set(path, DocumentSplit::kFile), &tokenizer, options()).num_documents(), 1u);
  EXPECT_EQ(num_folders(), 2u);
}

TEST_F(Prepare, LeavesNoFilesWhenInterrupted) {
  const std::string path = folder.write("a.txt", "one\ntwo\n");
  const ByteTokenizer tokenizer;
  PrepareOptions interrupted = options();
  interrupted.progress = [](const PrepareProgress&) { throw internal_error("stop"); };
  EXPECT_TRUE(contains(error_of([&] { prepare_data_set(text_set(path), &tokenizer, interrupted); }), "stop"));
  EXPECT_EQ(num_folders(), 0u);
  EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).num_documents(), 2u);
}

TEST_F(Prepare, LeavesNoFilesOnAFullDisk) {
  const std::string path = folder.write("a.txt", std::string(3'000'000, 'x'));
  const ByteTokenizer tokenizer;
  struct rlimit old {};
  ::getrlimit(RLIMIT_FSIZE, &old);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 1 << 20, old.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of([&] { prepare_data_set(text_set(path), &tokenizer, options()); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(contains(message, "ids.bin"));
  EXPECT_TRUE(contains(message, "File too large"));
  EXPECT_TRUE(contains(message, "hint: tokenised data is kept in data.cache_dir = "));
  EXPECT_EQ(num_folders(), 0u);
}

TEST_F(Prepare, NamesACacheFolderThatItCannotMake) {
  PrepareOptions blocked = options();
  blocked.cache_dir = folder.write("file", "") + "/cache";
  const ByteTokenizer tokenizer;
  const std::string path = folder.write("a.txt", "one\n");
  const std::string message = error_of([&] { prepare_data_set(text_set(path), &tokenizer, blocked); });
  EXPECT_TRUE(contains(message, "file/cache"));
  EXPECT_TRUE(contains(message, "data.cache_dir"));
  blocked.cache_dir = "/proc/self";  // exists, but no files can be created in it
  EXPECT_TRUE(contains(error_of([&] { prepare_data_set(text_set(path), &tokenizer, blocked); }), "data.cache_dir"));
}

TEST_F(Prepare, NamesTheCacheFolderOnlyForItsOwnFiles) {
  const std::string path = folder.write("a.txt", "one\n");
  const ByteTokenizer tokenizer;
  PrepareOptions failing = options();
  failing.progress = [&](const PrepareProgress&) { throw storage_error(failing.cache_dir + "/source cannot be read"); };
  const std::string message = error_of([&] { prepare_data_set(text_set(path), &tokenizer, failing); });
  EXPECT_TRUE(contains(message, "source cannot be read"));
  EXPECT_FALSE(contains(message, "data.cache_dir"));
}

TEST_F(Prepare, IgnoresFilesOfAKilledProcess) {
  const std::string path = folder.write("a.txt", "one\ntwo\n");
  const ByteTokenizer tokenizer;
  prepare_data_set(text_set(path), &tokenizer, options());
  std::string kept;
  for (const auto& entry : fs::directory_iterator(folder.path() + "/cache")) {
    if (entry.is_directory()) kept = entry.path().string();
  }
  fs::rename(kept, kept + ".unfinished");
  EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).num_documents(), 2u);
  EXPECT_FALSE(fs::exists(kept + ".unfinished"));
}

TEST_F(Prepare, MakesASetAgainIfABitHasChanged) {
  const std::string path =
      folder.write("a.jsonl", "{\"input_ids\":[1,2,3],\"labels\":[-100,2,3]}\n{\"input_ids\":[4,5,6,7,8]}\n");
  const std::vector<int32_t> values = values_of(prepare_data_set(token_set(path), nullptr, options(100)));
  for (const char* name : {"ids.bin", "labels.bin", "documents.bin"}) {
    log::reset_counted_warnings();
    calls = 0;
    change_byte(kept() + "/" + name, 2, 1);
    const TokenStore again = prepare_data_set(token_set(path), nullptr, options(100));
    EXPECT_EQ(calls, 1) << name;
    EXPECT_EQ(values_of(again), values) << name;
    ASSERT_EQ(counted_warnings().size(), 1u) << name;
    EXPECT_TRUE(contains(counted_warnings()[0].first, "a.jsonl"));
  }
  log::reset_counted_warnings();
}

TEST_F(Prepare, MakesASetAgainIfItsManifestHasChanged) {
  const std::string path = folder.write("a.txt", "one\nthree\n");
  const ByteTokenizer tokenizer;
  const Json facts = to_json(prepare_data_set(text_set(path), &tokenizer, options()).facts());
  std::string manifest = read_file(kept() + "/manifest.json");
  const std::string count = "\"num_trained_tokens\": ";
  manifest[manifest.find(count) + count.size()] ^= 1;
  write_file_atomic(kept() + "/manifest.json", manifest);
  EXPECT_EQ(to_json(prepare_data_set(text_set(path), &tokenizer, options()).facts()), facts);
  EXPECT_EQ(calls, 2);
  log::reset_counted_warnings();
}

TEST_F(Prepare, MakesASetAgainIfAFileIsNotRegular) {
  const std::string path = folder.write("a.txt", "one\ntwo\n");
  const ByteTokenizer tokenizer;
  prepare_data_set(text_set(path), &tokenizer, options());
  for (const char* name : {"ids.bin", "documents.bin", "manifest.json"}) {
    fs::remove(kept() + "/" + name);
    ASSERT_EQ(::mkfifo((kept() + "/" + name).c_str(), 0600), 0);
    EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).facts().num_tokens, 8u) << name;
    fs::remove(kept() + "/" + name);
    ASSERT_EQ(::symlink("/dev/zero", (kept() + "/" + name).c_str()), 0);
    EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).facts().num_tokens, 8u) << name;
  }
  EXPECT_EQ(calls, 7);
  log::reset_counted_warnings();
}

TEST_F(Prepare, KeepsASetForOneLibraryAndOptionsOfTheTokenizer) {
  const std::string path = folder.write("a.txt", "one\n");
  const ByteTokenizer first(-1, 256, "bytes", "library 1, lower = true");
  const std::string hash = prepare_data_set(text_set(path), &first, options()).facts().content_hash;
  const ByteTokenizer second(-1, 256, "bytes", "library 1, lower = false");
  EXPECT_EQ(prepare_data_set(text_set(path), &second, options()).facts().content_hash, hash);
  EXPECT_EQ(calls, 2);
  prepare_data_set(text_set(path), &second, options());
  EXPECT_EQ(calls, 2);
}

TEST_F(Prepare, PollsWhileItWaitsAndNamesTheHolder) {
  const std::string path = folder.write("a.txt", "one\n");
  const ByteTokenizer tokenizer;
  prepare_data_set(text_set(path), &tokenizer, options());
  const std::string lock_path = kept() + ".lock";
  EXPECT_TRUE(contains(read_file(lock_path), "process " + std::to_string(::getpid())));
  const File holder = File::open_write(lock_path);
  ASSERT_EQ(::flock(holder.descriptor(), LOCK_EX), 0);
  const std::string log_path = folder.path() + "/log.txt";
  log::add_file(log_path);
  PrepareOptions stopped = options();
  stopped.poll = [&] {
    if (read_file(log_path).find("waiting for") != std::string::npos) throw Error(ExitCode::kStopped, "stopped");
  };
  EXPECT_TRUE(contains(error_of([&] { prepare_data_set(text_set(path), &tokenizer, stopped); }), "stopped"));
  log::close_files();
  const std::string text = read_file(log_path);
  EXPECT_TRUE(contains(text, "a.txt: waiting for process " + std::to_string(::getpid())));
  EXPECT_TRUE(contains(text, lock_path));
}

TEST_F(Prepare, CanBeStoppedWhileItComparesChecksums) {
  const std::string path = folder.write("a.txt", "one\n");
  const ByteTokenizer tokenizer;
  prepare_data_set(text_set(path), &tokenizer, options());
  PrepareOptions stopped = options();
  stopped.poll = [] { throw Error(ExitCode::kStopped, "stopped"); };
  EXPECT_TRUE(contains(error_of([&] { prepare_data_set(text_set(path), &tokenizer, stopped); }), "stopped"));
  EXPECT_EQ(num_folders(), 1u);
}

TEST_F(Prepare, RefusesALockThatIsNotAFile) {
  const std::string path = folder.write("a.txt", "one\n");
  const ByteTokenizer tokenizer;
  prepare_data_set(text_set(path), &tokenizer, options());
  const std::string lock_path = kept() + ".lock";
  fs::remove(lock_path);
  ASSERT_EQ(::symlink(folder.write("precious", "keep me").c_str(), lock_path.c_str()), 0);
  EXPECT_TRUE(contains(error_of([&] { prepare_data_set(text_set(path), &tokenizer, options()); }), lock_path));
  EXPECT_EQ(read_file(folder.path() + "/precious"), "keep me");
}

TEST_F(Prepare, MakesASetOnceForSeveralWaiters) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "some line of text\n";
  const std::string path = folder.write("a.txt", text);
  const ByteTokenizer tokenizer;
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  std::atomic<uint64_t> num_tokens = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      PrepareOptions shared{folder.path() + "/cache", 0, [&](const PrepareProgress& progress) {
                              if (progress.num_bytes_done == progress.num_bytes) ++made;
                            }};
      num_tokens += prepare_data_set(text_set(path), &tokenizer, shared).facts().num_tokens;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(num_tokens, 4u * 50'000 * 18);
}

TEST_F(Prepare, RefusesDataThatCannotBeTrainedOn) {
  const ByteTokenizer tokenizer;
  auto message_of = [&](const DataSetConfig& set, int64_t vocab_size = 0) {
    return error_of([&] { prepare_data_set(set, &tokenizer, options(vocab_size)); });
  };
  EXPECT_TRUE(contains(message_of(text_set(folder.path() + "/no.txt")), "no such file"));
  EXPECT_TRUE(contains(message_of(text_set(folder.write("empty.txt", ""))), "the corpus is empty"));
  EXPECT_TRUE(contains(message_of(text_set(folder.write("blank.txt", "\n \n"))), "the corpus is empty"));
  EXPECT_TRUE(
      contains(message_of(token_set(folder.write("masked.jsonl", "{\"input_ids\":[1,2],\"labels\":[-100,-100]}"))),
               "all labels of"));
  EXPECT_EQ(num_folders(), 1u);  // the masked set is complete, but nothing in it can be trained
}

TEST_F(Prepare, ChecksKeptIdsAgainstTheVocabulary) {
  const std::string path = folder.write("a.jsonl", "{\"input_ids\":[1,2]}\n{\"input_ids\":[3,99]}\n");
  prepare_data_set(token_set(path), nullptr, options(100));
  const std::string message = error_of([&] { prepare_data_set(token_set(path), nullptr, options(50)); });
  EXPECT_TRUE(contains(message, "a.jsonl:2"));
  EXPECT_TRUE(contains(message, "token id 99, the vocabulary has 50 ids"));
  EXPECT_EQ(calls, 1);
}

TEST_F(Prepare, ChoosesTheWidthOfIdsByTheVocabulary) {
  const std::string path = folder.write("a.jsonl", "{\"input_ids\":[1,65534]}\n");
  EXPECT_EQ(prepare_data_set(token_set(path), nullptr, options(65'535)).facts().id_bytes, 2);
  const std::string big = folder.write("b.jsonl", "{\"input_ids\":[1,65535]}\n");
  const TokenStore store = prepare_data_set(token_set(big), nullptr, options(65'536));
  EXPECT_EQ(store.facts().id_bytes, 4);
  std::vector<int32_t> ids(2);
  store.read_ids(0, ids);
  EXPECT_EQ(ids[1], 65'535);
}

TEST_F(Prepare, CountsWhatItSkipsInEveryRun) {
  const std::string path = folder.write("a.jsonl", "{\"text\":\"a\",\"url\":1}\n{\"text\":\"\",\"url\":1}\n");
  const ByteTokenizer tokenizer;
  for (int run = 0; run < 2; ++run) {
    log::reset_counted_warnings();
    prepare_data_set(text_set(path), &tokenizer, options());
    ASSERT_EQ(counted_warnings().size(), 2u);
    EXPECT_EQ(counted_warnings()[0].second, 1u);
    EXPECT_EQ(counted_warnings()[1].second, 2u);
  }
  log::reset_counted_warnings();
}

TEST_F(Prepare, CountsBlankLinesOfText) {
  const std::string path = folder.write("a.txt", "one\n\n \ntwo\n");
  const ByteTokenizer tokenizer;
  for (int run = 0; run < 2; ++run) {
    log::reset_counted_warnings();
    prepare_data_set(text_set(path), &tokenizer, options());
    ASSERT_EQ(counted_warnings().size(), 1u);
    EXPECT_EQ(counted_warnings()[0].second, 2u);
  }
  log::reset_counted_warnings();
}

TEST_F(Prepare, CountsTheFilesOfAFolderThatItSkips) {
  fs::create_directories(folder.path() + "/data/more");
  for (const char* name : {"a.txt", "b.md", "c.md", "d.tsv", "README", ".hidden"})
    folder.write(std::string("data/") + name, "text\n");
  ASSERT_EQ(::mkfifo((folder.path() + "/data/e.txt").c_str(), 0600), 0);
  const ByteTokenizer tokenizer;
  const std::string log_path = folder.path() + "/log.txt";
  log::add_file(log_path);
  log::reset_counted_warnings();
  prepare_data_set(text_set(folder.path() + "/data"), &tokenizer, options());
  log::close_files();
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].second, 7u);
  EXPECT_TRUE(contains(read_file(log_path),
                       "7 entries of the folder are skipped: .md 2, .tsv 1, no extension 2, not a regular file 1, "
                       "subfolder 1"));
  log::reset_counted_warnings();
}

TEST_F(Prepare, GivesTheSameStoreWithAnyNumberOfThreads) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) {
    text += "{\"text\":\"" + std::string(static_cast<size_t>(i % 60), static_cast<char>('a' + i % 26)) + "\",\"c" +
            std::to_string(i % 50) + "\":1}\n";
  }
  const std::string path = folder.write("a.jsonl", text);
  const ByteTokenizer tokenizer;
  Json facts;
  DataConfig data;
  for (const int64_t num_threads : {1, 2, 7}) {
    fs::remove_all(folder.path() + "/cache");
    data.num_threads = num_threads;
    PrepareOptions threaded = options();
    threaded.data = &data;
    const Json now = to_json(prepare_data_set(text_set(path), &tokenizer, threaded).facts());
    if (num_threads == 1) facts = now;
    EXPECT_EQ(now, facts) << num_threads;
  }
  log::reset_counted_warnings();
}

// On a machine with one core this cannot fail.
TEST_F(Prepare, StartsAWorkerForEachCoreThatTheProcessMayUse) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "three\n";  // far more chunks than may wait, so that no thread ends early
  const std::string path = folder.write("a.txt", text);
  const ByteTokenizer tokenizer;
  const auto most_threads = [&](int64_t num_threads) {
    fs::remove_all(folder.path() + "/cache");
    DataConfig data;
    data.num_threads = num_threads;
    std::ptrdiff_t most = 0;
    PrepareOptions counted = options();
    counted.data = &data;
    counted.poll = [&] { most = std::max(most, std::distance(fs::directory_iterator("/proc/self/task"), {})); };
    prepare_data_set(text_set(path), &tokenizer, counted);
    return most;
  };
  const std::ptrdiff_t of_one = most_threads(1);
  EXPECT_EQ(most_threads(3), of_one + 2);
  const test::OneCore one_core;
  EXPECT_EQ(most_threads(0), of_one);
}

TEST_F(Prepare, ReportsTheFirstInvalidRowWithAnyNumberOfThreads) {
  std::string text;
  for (int i = 1; i <= 5000; ++i) text += i >= 3000 ? "{\"text\": 3}\n" : "{\"text\": \"three\"}\n";
  const std::string path = folder.write("a.jsonl", text);
  const ByteTokenizer tokenizer;
  DataConfig data;
  for (const int64_t num_threads : {1, 2, 7}) {
    data.num_threads = num_threads;
    PrepareOptions threaded = options();
    threaded.data = &data;
    EXPECT_TRUE(contains(error_of([&] { prepare_data_set(text_set(path), &tokenizer, threaded); }), "a.jsonl:3000"));
    EXPECT_EQ(num_folders(), 0u);
  }
}

TEST_F(Prepare, MakesASetAgainIfItsColumnsChange) {
  const std::string path = folder.write("a.txt", "one\n");
  const ByteTokenizer tokenizer;
  prepare_data_set(text_set(path), &tokenizer, options());
  DataSetConfig renamed = text_set(path);
  renamed.columns = {{"text", "body"}};
  prepare_data_set(renamed, &tokenizer, options());
  EXPECT_EQ(calls, 2);
  prepare_data_set(renamed, &tokenizer, options());
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace chassis
