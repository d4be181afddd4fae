// The data of training: an endless sequence of steps that depends only on the configuration and a cursor.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/data/batch.hpp"
#include "host/data/cursor.hpp"
#include "host/data/data_config.hpp"
#include "host/data/mixture.hpp"
#include "host/data/packing.hpp"
#include "host/data/prepare.hpp"
#include "host/data/row_lengths.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// How a step is divided: micro-batch m of rank r holds the rows from (m · num_ranks + r) · micro_batch_size on, so that
// the step has the same rows for any number of ranks with the same global batch.
struct StepShape {
  int64_t micro_batch_size = 1;
  int64_t num_micro_batches = 1;
  int64_t rank = 0;
  int64_t num_ranks = 1;
  int64_t num_rows() const { return micro_batch_size * num_micro_batches * num_ranks; }
  bool operator==(const StepShape&) const = default;
};

struct StepData {
  std::vector<Batch> micro_batches;  // this rank's
  // Sums over all micro-batches of all ranks; known without communication.
  uint64_t num_tokens = 0;
  uint64_t num_trained_tokens = 0;
  uint64_t num_positions = 0;  // that are computed: tokens and padding
};

// Counts since construction, over all ranks.
struct DataStats {
  uint64_t num_rows = 0;
  uint64_t num_tokens = 0;
  uint64_t num_trained_tokens = 0;
  uint64_t num_padding = 0;  // positions that are computed for nothing
  uint64_t num_cut = 0;      // positions of padding that are not computed
  uint64_t num_truncated_documents = 0;
  uint64_t num_dropped_documents = 0;
  // The fraction of the computed positions that held tokens.
  double utilisation() const {
    const uint64_t all = num_tokens + num_padding;
    return all == 0 ? 1 : static_cast<double>(num_tokens) / static_cast<double>(all);
  }
};

// Not thread-safe.
class TrainData {
 public:
  // Prepares the sets that are not kept, with the callbacks of PrepareOptions. Only text needs `tokenizer`. Throws
  // config errors, also for invalid data.
  TrainData(const DataConfig& config, const Tokenizer* tokenizer, const PrepareCallback& progress = {},
            const std::function<void()>& poll = {});
  ~TrainData();
  TrainData(const TrainData&) = delete;
  TrainData& operator=(const TrainData&) = delete;

  // Blocks until the next step is built. A step without a trained token is a config error,
  // unless sequences are scored.
  StepData next_step(const StepShape& shape);
  StepData next_step(int64_t micro_batch_size, int64_t num_micro_batches) {
    return next_step(StepShape{micro_batch_size, num_micro_batches, 0, 1});
  }

  // The position of the next step. restore() takes the same time at any position. It refuses a cursor of other data,
  // another order or another packing. The batch sizes may differ, and seq_len too, except with best_fit.
  Json save() const;
  void restore(const Json& saved, const std::string& where = "data cursor");
  const DataCursor& cursor() const { return cursor_; }

  // An epoch has as many rows as all sets together; without weights, it sees every document once.
  double num_rows_per_epoch() const { return num_rows_per_epoch_; }
  // The number of steps in `epochs` epochs; the last step may continue into the next epoch. Throws a config error if it
  // exceeds 64 bits.
  int64_t num_steps(double epochs, int64_t global_batch_size) const;
  // Rows and epochs so far, from the start of training.
  uint64_t num_rows_taken() const;
  double epoch() const;
  // The indexes of the sets that have a row neither among the rows so far nor among the next `num_rows`.
  std::vector<size_t> sets_not_reached(uint64_t num_rows) const;
  double share(size_t set) const { return mixture_->shares()[set]; }
  // Passes over each set so far, in the order of the configuration.
  std::vector<double> passes() const;

  // Identity of tokens and tokenizer: {"tokenizer": …, "sets": […]}, and its SHA-256. The order of training is not
  // included.
  Json identity() const;
  std::string data_hash() const;
  // The content of the files, as hashes of their rows: {"data/a.jsonl": "0123…"}. Saved so that a run that finds other
  // data can name the file that changed. A set of many files has one entry.
  Json content() const;
  const DataStats& stats() const { return stats_; }
  const DataConfig& config() const { return config_; }
  Packing packing() const { return config_.packing; }
  const RowLengths& lengths() const { return lengths_; }
  // The fraction of an epoch's positions that hold tokens; the others are padding.
  double utilisation() const;
  const std::vector<RowSource>& sets() const { return sets_; }
  // As DataConfig::length_multiple, from the next step on.
  void set_length_multiple(int64_t multiple);
  // As in RowSource.
  void set_reference(size_t set, std::shared_ptr<const ReferenceStore> reference);

 private:
  struct Built {
    StepData step;
    DataCursor after;
    std::vector<RowCounts> counts;  // per set
  };
  // Depends only on its arguments, and may run on another thread.
  Built build(const StepShape& shape, DataCursor cursor) const;
  void drop_prefetched();
  Json order() const;

  DataConfig config_;
  RowLengths lengths_;
  std::string tokenizer_fingerprint_;
  std::vector<RowSource> sets_;
  std::optional<Mixture> mixture_;
  double num_rows_per_epoch_ = 0;
  std::vector<uint64_t> num_long_left_;  // per set: documents that are too long and not reported yet
  DataCursor cursor_;
  DataStats stats_;
  StepShape prefetched_shape_;
  std::future<Built> prefetched_;
};

// The differences between two results of TrainData::content(), one file per line, with both hashes: "\n  a.jsonl had
// content 0123…, has 4567…". Empty if there are none.
std::string content_differences(const Json& before, const Json& now);

// Reports truncated or dropped documents as counted warnings.
void count_long_documents(const DataSetConfig& config, int64_t seq_len, uint64_t num_truncated, uint64_t num_dropped);

}  // namespace chassis
