// Chunks of rows pass through two queues. Each has a number, by which the caller restores their order.
#include "host/data/document_pipeline.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/thread.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

constexpr size_t kChunkRows = 256, kChunkBytes = size_t{256} << 10;
constexpr uint64_t kMaxBytesOnTheWay = uint64_t{24} << 20;
constexpr auto kPollInterval = 20ms;

struct Chunk {
  uint64_t number = 0;
  std::vector<RawRow> rows;
  uint64_t num_bytes = 0;  // in the rows
  DocumentChunk out;
  std::exception_ptr error;  // thrown after the documents were taken
};
using ChunkPtr = std::unique_ptr<Chunk>;

class Pipeline {
 public:
  Pipeline(const std::vector<std::string>& files, const PipelineOptions& options)
      : files_(files), options_(options), max_chunks_(static_cast<size_t>(options.num_workers) * 2 + 2) {
    for (int i = 0; i < options.num_workers; ++i) workers_.push_back(options.make_worker());
    try {
      threads_.reserve(workers_.size() + 1);  // so that no started thread is lost for lack of memory
      threads_.emplace_back("data reader", [this] { run([this] { read(); }); });
      for (const auto& worker : workers_)
        threads_.emplace_back("data worker", [this, &worker] { run([&] { work(*worker); }); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Pipeline() { stop(); }

  // The next chunk in order; NULL at the end.
  ChunkPtr next() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (failure_) std::rethrow_exception(failure_);
      if (const auto found = done_.find(num_taken_); found != done_.end()) {
        ChunkPtr chunk = std::move(found->second);
        done_.erase(found);
        ++num_taken_;
        bytes_on_the_way_ -= chunk->num_bytes;
        has_room_.notify_one();
        return chunk;
      }
      if (is_all_read_ && num_taken_ == num_read_) return nullptr;
      is_done_.wait_for(lock, kPollInterval);
      if (!options_.poll) continue;
      lock.unlock();
      options_.poll();
      lock.lock();
    }
  }

 private:
  // Runs the body of a thread. next() throws what it throws outside a chunk, such as for lack of memory.
  template <typename Part>
  void run(Part&& part) {
    try {
      part();
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
      is_done_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    has_room_.notify_all();
    has_work_.notify_all();
    for (Thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // False if the pipeline has been stopped.
  bool push(ChunkPtr chunk) {
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [&] {
      const uint64_t num_on_the_way = num_read_ - num_taken_;
      return is_stopped_ || num_on_the_way == 0 ||
             (num_on_the_way < max_chunks_ && bytes_on_the_way_ + chunk->num_bytes <= kMaxBytesOnTheWay);
    });
    if (is_stopped_) return false;
    chunk->number = num_read_++;
    bytes_on_the_way_ += chunk->num_bytes;
    to_do_.push_back(std::move(chunk));
    lock.unlock();
    has_work_.notify_one();
    return true;
  }

  void read() {
    uint64_t num_bytes_before = 0;
    for (size_t file = 0; file < files_.size(); ++file) {
      if (!read_file(file, num_bytes_before)) return;
    }
    end_reading();
  }

  void end_reading() {
    {
      const std::lock_guard lock(mutex_);
      is_all_read_ = true;
    }
    has_work_.notify_all();
    is_done_.notify_one();
  }

  // False if nothing more is to be read.
  bool read_file(size_t file, uint64_t& num_bytes_before) {
    const auto new_chunk = [&] {
      auto chunk = std::make_unique<Chunk>();
      chunk->out.file = file;
      return chunk;
    };
    ChunkPtr chunk = new_chunk();
    try {
      const std::unique_ptr<RowReader> reader = options_.open(files_[file]);
      reader->set_poll([this] {
        if (is_stopped_) throw Error(ExitCode::kStopped, "reading was stopped");
      });
      for (RawRow row; reader->next(row); row = {}) {
        // A large row is a chunk of its own, so that only one is in memory if it exceeds the bound.
        if (!chunk->rows.empty() && chunk->num_bytes + row.bytes.size() > kChunkBytes) {
          if (!push(std::exchange(chunk, new_chunk()))) return false;
        }
        chunk->num_bytes += row.bytes.size();
        chunk->rows.push_back(std::move(row));
        chunk->out.num_bytes_read = num_bytes_before + reader->num_bytes_read();
        if (chunk->rows.size() < kChunkRows) continue;
        if (!push(std::exchange(chunk, new_chunk()))) return false;
      }
      chunk->out.notes = reader->notes();
      num_bytes_before += reader->num_bytes_read();
      chunk->out.num_bytes_read = num_bytes_before;
      return push(std::move(chunk));
    } catch (...) {
      chunk->error = std::current_exception();
      if (push(std::move(chunk))) end_reading();
      return false;
    }
  }

  void work(RowWorker& worker) {
    while (true) {
      std::unique_lock lock(mutex_);
      has_work_.wait(lock, [&] { return is_stopped_ || !to_do_.empty() || is_all_read_; });
      if (is_stopped_ || to_do_.empty()) return;
      ChunkPtr chunk = std::move(to_do_.front());
      to_do_.pop_front();
      lock.unlock();
      try {
        make_documents(*chunk, worker);
      } catch (...) {
        chunk->error = std::current_exception();  // replaces the reader's error, which is of a later row
      }
      chunk->rows = {};
      lock.lock();
      done_.emplace(chunk->number, std::move(chunk));
      lock.unlock();
      is_done_.notify_one();
    }
  }

  void make_documents(Chunk& chunk, RowWorker& worker) {
    DocumentChunk& out = chunk.out;
    const std::string& file = files_[out.file];
    out.documents.reserve(chunk.rows.size());
    std::string reason;
    for (const RawRow& row : chunk.rows) {
      if (is_stopped_.load(std::memory_order_relaxed)) return;
      ++out.num_rows;
      out.content_hash += hash64(row.bytes, row.line);
      Document document;
      document.line = row.line;
      switch (worker.make(row, file, document, reason)) {
        case RowWorker::Made::kDocument:
          out.documents.push_back(std::move(document));
          break;
        case RowWorker::Made::kDropped:
          out.dropped.push_back({row.line, reason});
          break;
        case RowWorker::Made::kNothing:
          break;
      }
    }
    out.notes.add(worker.take_notes());
  }

  const std::vector<std::string>& files_;
  const PipelineOptions& options_;
  const size_t max_chunks_;
  std::vector<std::unique_ptr<RowWorker>> workers_;

  std::mutex mutex_;
  std::condition_variable has_room_, has_work_, is_done_;
  std::deque<ChunkPtr> to_do_;
  std::map<uint64_t, ChunkPtr> done_;
  uint64_t num_read_ = 0, num_taken_ = 0;  // chunks
  uint64_t bytes_on_the_way_ = 0;
  bool is_all_read_ = false;
  std::exception_ptr failure_;
  std::atomic<bool> is_stopped_ = false;
  std::vector<Thread> threads_;
};

}  // namespace

void run_document_pipeline(const std::vector<std::string>& files, const PipelineOptions& options,
                           const std::function<void(DocumentChunk&&)>& take) {
  CHASSIS_CHECK(options.num_workers > 0, "at least one worker");
  Pipeline pipeline(files, options);
  while (const ChunkPtr chunk = pipeline.next()) {
    if (options.poll) options.poll();
    take(std::move(chunk->out));
    if (chunk->error) std::rethrow_exception(chunk->error);
  }
}

}  // namespace chassis
