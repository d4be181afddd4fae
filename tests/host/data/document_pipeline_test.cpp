#include "host/data/document_pipeline.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "host/data/permutation.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

// A reader of the file "<count>", which has that many rows. For "<count>!" it fails after the last row.
class CountedRows final : public RowReader {
 public:
  explicit CountedRows(const std::string& name) : name_(name), count_(std::stoull(name)) {}
  bool next(RawRow& row) override {
    if (row_ == count_) {
      notes_.num_blank_lines = count_;
      if (name_.ends_with("!")) throw config_error("the reader fails after row " + std::to_string(count_));
      return false;
    }
    row.line = ++row_;
    // A few rows are larger than a chunk.
    row.bytes = std::string(row_ % 100 == 0 ? 300'000 : row_ % 50, static_cast<char>('a' + row_ % 26));
    return true;
  }
  uint64_t num_bytes_read() const override { return row_; }

 private:
  std::string name_;
  uint64_t count_, row_ = 0;
};

// Row r becomes one token r. Rows divisible by 7 are dropped, and rows divisible by 11 have no document.
class SlowWorker final : public RowWorker {
 public:
  SlowWorker(uint64_t bad_row, std::atomic<int>& made) : bad_row_(bad_row), made_(made) {}
  Made make(const RawRow& row, const std::string& file, Document& document, std::string& reason) override {
    ++made_;
    if (mix64(row.line) % 97 == 0) std::this_thread::sleep_for(1ms);
    if (bad_row_ && row.line >= bad_row_) throw config_error(file + ":" + std::to_string(row.line) + " is bad");
    if (row.line % 7 == 0) {
      reason = "divided by 7";
      return Made::kDropped;
    }
    if (row.line % 11 == 0) {
      ++num_empty_;
      return Made::kNothing;
    }
    document.ids = {static_cast<int32_t>(row.line)};
    return Made::kDocument;
  }
  ReadNotes take_notes() override {
    ReadNotes notes;
    notes.num_empty_documents = std::exchange(num_empty_, 0);
    return notes;
  }

 private:
  uint64_t bad_row_, num_empty_ = 0;
  std::atomic<int>& made_;
};

struct Result {
  std::vector<std::pair<size_t, int32_t>> documents;
  std::vector<uint64_t> dropped, content;
  uint64_t num_rows = 0, num_empty = 0, num_blank = 0, num_bytes = 0;
  std::string error;
  bool operator==(const Result&) const = default;
};

struct DocumentPipelineTest : testing::Test {
  std::atomic<int> num_made = 0;
  std::function<void()> poll, on_chunk;

  Result run(const std::vector<std::string>& files, int num_workers, uint64_t bad_row = 0) {
    PipelineOptions options;
    options.open = [](const std::string& path) { return std::make_unique<CountedRows>(path); };
    options.make_worker = [&] { return std::make_unique<SlowWorker>(bad_row, num_made); };
    options.num_workers = num_workers;
    options.poll = poll;
    Result result;
    result.content.resize(files.size());
    const auto caller = std::this_thread::get_id();
    try {
      run_document_pipeline(files, options, [&](DocumentChunk&& chunk) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        for (const Document& document : chunk.documents) {
          EXPECT_EQ(document.line, static_cast<uint64_t>(document.ids.at(0)));
          result.documents.emplace_back(chunk.file, document.ids[0]);
        }
        for (const DroppedRow& row : chunk.dropped) {
          EXPECT_EQ(row.reason, "divided by 7");
          result.dropped.push_back(row.line);
        }
        result.content[chunk.file] += chunk.content_hash;
        result.num_rows += chunk.num_rows;
        result.num_empty += chunk.notes.num_empty_documents;
        result.num_blank += chunk.notes.num_blank_lines;
        result.num_bytes = chunk.num_bytes_read;
        if (on_chunk) on_chunk();
      });
    } catch (const Error& error) {
      result.error = error.message();
    }
    return result;
  }
};

TEST_F(DocumentPipelineTest, GivesAllDocumentsInOrderWithAnyNumberOfThreads) {
  const std::vector<std::string> files = {"1000", "0", "3", "2500"};
  const Result one = run(files, 1);
  EXPECT_EQ(one.num_rows, 3503u);
  EXPECT_EQ(one.num_bytes, 3503u);
  EXPECT_EQ(one.num_blank, 3503u);
  EXPECT_EQ(one.dropped.size(), 142u + 357u);
  EXPECT_EQ(one.documents.size() + one.dropped.size() + one.num_empty, 3503u);
  EXPECT_TRUE(std::is_sorted(one.documents.begin(), one.documents.end()));
  EXPECT_NE(one.content[0], one.content[3]);
  for (const int num_workers : {2, 3, 8}) EXPECT_EQ(run(files, num_workers), one) << num_workers;
}

TEST_F(DocumentPipelineTest, ThrowsTheErrorOfTheFirstBadRow) {
  for (const int num_workers : {1, 2, 8}) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      EXPECT_EQ(run({"400", "2000"}, num_workers, 300).error, "400:300 is bad");
      EXPECT_EQ(run({"200", "2000!"}, num_workers, 1500).error, "2000!:1500 is bad");
      const Result reader = run({"200", "1200!"}, num_workers);
      EXPECT_EQ(reader.error, "the reader fails after row 1200");
      EXPECT_EQ(reader.documents.back().second, 1200);
    }
  }
}

TEST_F(DocumentPipelineTest, EndsWhenTheCallerThrows) {
  const auto stop = [] { throw Error(ExitCode::kStopped, "stopped"); };
  int num_calls = 0;
  on_chunk = [&] {
    if (++num_calls == 3) stop();
  };
  EXPECT_EQ(run({"1000000"}, 3).error, "stopped");
  EXPECT_LT(num_made, 100'000);
  on_chunk = {};
  poll = [&] {
    if (++num_calls == 10) stop();
  };
  num_made = 0;
  EXPECT_EQ(run({"1000000"}, 3).error, "stopped");
  EXPECT_LT(num_made, 100'000);
}

// A caller that takes nothing holds up the other threads, so that the rows in memory are bounded.
TEST_F(DocumentPipelineTest, ReadsNoFurtherThanTheCallerHasTaken) {
  int most = 0, num_taken = 0;
  on_chunk = [&] {
    if (++num_taken > 3) return;
    std::this_thread::sleep_for(100ms);
    most = num_made;
  };
  run({"20000"}, 2);
  EXPECT_GT(most, 0);
  EXPECT_LT(most, 256 * 16);
}

TEST_F(DocumentPipelineTest, ReportsAWorkerThatCannotBeMade) {
  PipelineOptions options;
  options.open = [](const std::string& path) { return std::make_unique<CountedRows>(path); };
  options.make_worker = []() -> std::unique_ptr<RowWorker> { throw config_error("no such template"); };
  EXPECT_TRUE(contains(error_of([&] { run_document_pipeline({"3"}, options, [](DocumentChunk&&) {}); }), "template"));
}

}  // namespace
}  // namespace chassis
