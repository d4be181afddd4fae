#include "host/data/prepare.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "host/base/log.hpp"
#include "tests/host/data/support.hpp"

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
};

TEST_F(Prepare, KeepsWhatItMadeAndUsesItAgain) {
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
  EXPECT_EQ(num_folders(), 1u);
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

TEST_F(Prepare, KeepsOneSetPerWayOfReadingIt) {
  const std::string path = folder.write("a.txt", "one\ntwo\n");
  const ByteTokenizer tokenizer;
  EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).num_documents(), 2u);
  EXPECT_EQ(prepare_data_set(text_set(path, DocumentSplit::kFile), &tokenizer, options()).num_documents(), 1u);
  EXPECT_EQ(num_folders(), 2u);
}

TEST_F(Prepare, LeavesNothingBehindWhenInterrupted) {
  const std::string path = folder.write("a.txt", "one\ntwo\n");
  const ByteTokenizer tokenizer;
  PrepareOptions interrupted = options();
  interrupted.progress = [](const PrepareProgress&) { throw internal_error("stop"); };
  EXPECT_TRUE(contains(error_of([&] { prepare_data_set(text_set(path), &tokenizer, interrupted); }), "stop"));
  EXPECT_EQ(num_folders(), 0u);
  EXPECT_EQ(prepare_data_set(text_set(path), &tokenizer, options()).num_documents(), 2u);
}

TEST_F(Prepare, LeavesNothingBehindOnAFullDisk) {
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
  EXPECT_EQ(num_folders(), 0u);
}

TEST_F(Prepare, NamesACacheFolderItCanNotMake) {
  PrepareOptions blocked = options();
  blocked.cache_dir = folder.write("file", "") + "/cache";
  const ByteTokenizer tokenizer;
  const std::string path = folder.write("a.txt", "one\n");
  EXPECT_TRUE(contains(error_of([&] { prepare_data_set(text_set(path), &tokenizer, blocked); }), "file/cache"));
}

TEST_F(Prepare, IgnoresWhatAKilledProcessLeft) {
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

TEST_F(Prepare, RefusesWhatCanNotBeTrained) {
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
  EXPECT_EQ(num_folders(), 1u);  // the masked one is whole, only not trainable
}

TEST_F(Prepare, ChecksKeptIdsAgainstTheModelAtHand) {
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

TEST_F(Prepare, CountsWhatItPassesOverInEveryRun) {
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

}  // namespace
}  // namespace chassis
