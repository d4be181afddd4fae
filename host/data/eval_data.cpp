// Ranks take rows in turn, batch by batch. Every rank goes through all rows, and builds only its own.
#include "host/data/eval_data.hpp"

#include <algorithm>
#include <cmath>

#include "host/base/error.hpp"
#include "host/data/train_data.hpp"

namespace chassis {
namespace {

RowOptions one_pass(const DataConfig& data) {
  RowOptions options;
  options.packing = data.packing;
  options.overflow = data.overflow;
  options.seq_len = data.seq_len;
  options.one_pass = true;
  options.max_drop_ratio = data.max_drop_ratio;
  return options;
}

}  // namespace

EvalData::EvalData(const DataSetConfig& set, const DataConfig& data, const Tokenizer* tokenizer,
                   const PrepareCallback& progress, const std::function<void()>& poll)
    : seq_len_(data.seq_len),
      lengths_(data.seq_len, data.length_multiple),
      pad_id_(data.pad_id),
      fields_(data.fields),
      dims_(data.dims),
      source_(prepare_data_set(set, tokenizer,
                               {data.cache_dir, data.vocab_size, progress, poll, data.first_on_machine, &data}),
              one_pass(data), set, poll),
      num_rows_(static_cast<uint64_t>(std::ceil(source_.num_rows()))) {
  const uint64_t num_long = source_.num_long_documents();
  count_long_documents(set, seq_len_, data.overflow == Overflow::kTruncate ? num_long : 0,
                       drops_long_documents(data.overflow) ? num_long : 0);
}

EvalData::EvalData(const RowSource& rows, const DataConfig& data)
    : seq_len_(data.seq_len),
      lengths_(data.seq_len, data.length_multiple),
      pad_id_(data.pad_id),
      fields_(data.fields),
      dims_(data.dims),
      source_(rows.once()),
      num_rows_(static_cast<uint64_t>(std::ceil(source_.num_rows()))) {}

EvalData::EvalData(const EvalData& other, RowSource rows)
    : seq_len_(other.seq_len_),
      lengths_(other.lengths_),
      pad_id_(other.pad_id_),
      fields_(other.fields_),
      dims_(other.dims_),
      source_(std::move(rows)),
      num_rows_(other.num_rows_) {}

std::optional<Batch> EvalData::next(int64_t micro_batch_size, int64_t rank, int64_t num_ranks) {
  CHASSIS_CHECK(micro_batch_size > 0 && rank >= 0 && rank < num_ranks, "the shape of the batch");
  const auto left = static_cast<int64_t>(num_rows_ - cursor_.num_rows);
  if (left == 0) return std::nullopt;
  const int64_t rows_per_rank = std::min(micro_batch_size, (left + num_ranks - 1) / num_ranks);
  std::optional<Batch> mine;
  for (int64_t r = 0; r < num_ranks; ++r) {
    Batch batch = take(rows_per_rank, r == rank);
    if (r == rank) mine = std::move(batch);
  }
  return mine;
}

std::optional<Batch> EvalData::skip(int64_t micro_batch_size) {
  const auto left = static_cast<int64_t>(num_rows_ - cursor_.num_rows);
  if (left == 0) return std::nullopt;
  return take(std::min(micro_batch_size, left), false);
}

Batch EvalData::take(int64_t num_rows, bool is_mine) {
  Batch batch;
  if (is_mine) batch = {num_rows, seq_len_, pad_id_, fields_, dims_};
  batch.num_rows = num_rows;
  uint64_t longest = 0;
  for (int64_t row = 0; row < num_rows && cursor_.num_rows < num_rows_; ++row) {
    const RowCounts counts = is_mine ? source_.fill(cursor_, BatchRow(batch, row)) : source_.skip(cursor_);
    longest = std::max(longest, counts.num_tokens);
    batch.num_tokens += counts.num_tokens;
    batch.num_trained_tokens += counts.num_trained_tokens;
  }
  const int64_t length = lengths_.holding(static_cast<int64_t>(longest));
  if (is_mine) batch.shorten(length);
  batch.seq_len = length;
  return batch;
}

void EvalData::rewind() { cursor_ = {}; }

}  // namespace chassis
