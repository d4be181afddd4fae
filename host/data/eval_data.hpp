// The data of an evaluation: one set, read once in its own order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/data/batch.hpp"
#include "host/data/data_config.hpp"
#include "host/data/packing.hpp"
#include "host/data/prepare.hpp"
#include "host/data/row_lengths.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

class EvalData {
 public:
  // Uses packing, overflow, seq_len and the cache of `data`. Does not shuffle, and reads nothing twice.
  EvalData(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer,
           const PrepareCallback& progress = {}, const std::function<void()>& poll = {});

  // The first pass over a set that is prepared. `data` is its configuration.
  EvalData(const RowSource& rows, const DataConfig& data);
  // The same set at its first row.
  EvalData read_once() const { return {*this, source_.once()}; }

  // As DataConfig::length_multiple, from the next batch on.
  void set_length_multiple(int64_t multiple) { lengths_ = RowLengths(seq_len_, multiple); }
  // As in RowSource.
  void set_reference(std::shared_ptr<const ReferenceStore> reference) { source_.set_reference(std::move(reference)); }

  // This rank's next micro-batch; nullopt at the end. All ranks get the same number of batches and of rows. Near the
  // end a batch has fewer rows, and rows beyond the data are padding.
  std::optional<Batch> next(int64_t micro_batch_size, int64_t rank = 0, int64_t num_ranks = 1);
  // Skips the batch that next(micro_batch_size) would return, and returns its counts without fields.
  std::optional<Batch> skip(int64_t micro_batch_size);
  // Returns to the first row.
  void rewind();

  // A batch of padding in the shape of another.
  Batch padding(const Batch& other) const { return {other.num_rows, other.seq_len, pad_id_, fields_, dims_}; }
  uint64_t num_rows() const { return num_rows_; }
  uint64_t num_tokens() const { return source_.store().facts().num_tokens; }
  const DataSetConfig& config() const { return source_.config(); }
  const RowSource& source() const { return source_; }

 private:
  EvalData(const EvalData& other, RowSource rows);
  Batch take(int64_t num_rows, bool is_mine);

  int64_t seq_len_;
  RowLengths lengths_;
  int32_t pad_id_;
  std::vector<std::string> fields_;
  NamedSizes dims_;
  RowSource source_;
  uint64_t num_rows_;
  SetCursor cursor_;
};

}  // namespace chassis
