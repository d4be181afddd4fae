// Prepares and reads a corpus of 200 MB in a small, fixed amount of memory.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>

#include "host/data/train_data.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

// The peak memory of this process so far, in KiB.
long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  }
  return -1;
}

TEST(CorpusMemory, DoesNotGrowWithTheCorpus) {
  constexpr uint64_t kCorpusBytes = 200'000'000;
  TempFolder folder;
  const std::string path = folder.path() + "/corpus.txt";
  {
    std::ofstream out(path);
    uint64_t written = 0;
    for (uint64_t i = 0; written < kCorpusBytes; ++i) {
      const std::string line = std::string(20 + i * 7919 % 400, static_cast<char>('a' + i % 26)) + "\n";
      out << line;
      written += line.size();
    }
  }
  DataConfig config;
  config.seq_len = 512;
  config.vocab_size = 258;
  config.cache_dir = folder.path() + "/cache";
  config.train = {text_set(path)};
  const ByteTokenizer tokenizer;
  const long before = peak_kib();
  const auto start = std::chrono::steady_clock::now();
  TrainData data(config, &tokenizer);
  const auto prepared = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) data.next_step(8, 2);
  const auto stepped = std::chrono::steady_clock::now();
  const long growth = peak_kib() - before;
  auto ms = [](auto duration) { return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count(); };
  RecordProperty("growth_kib", static_cast<int>(growth));
  std::printf("prepared in %ld ms, 2000 steps of 8192 tokens in %ld ms, memory grew by %ld KiB\n",
              static_cast<long>(ms(prepared - start)), static_cast<long>(ms(stepped - prepared)), growth);
  EXPECT_GT(data.sets()[0].store().facts().num_tokens, kCorpusBytes);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(growth, 12 * 1024);
#endif
}

}  // namespace
}  // namespace chassis
