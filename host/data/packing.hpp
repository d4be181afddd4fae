// From documents to rows: one data set in the order of training, cut into rows of seq_len.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "host/data/batch.hpp"
#include "host/data/best_fit.hpp"
#include "host/data/data_config.hpp"
#include "host/data/permutation.hpp"
#include "host/data/reference_store.hpp"
#include "host/data/row_options.hpp"
#include "host/data/token_store.hpp"

namespace chassis {

// The position in a set: the next token is `offset` tokens into the `document`-th document of pass `epoch`. With
// best_fit the next row is the `document`-th of the pass, and `offset` is 0.
struct SetCursor {
  uint64_t epoch = 0;
  uint64_t document = 0;
  uint64_t offset = 0;
  uint64_t num_rows = 0;  // taken so far
  bool operator==(const SetCursor&) const = default;
};

struct RowCounts {
  uint64_t num_tokens = 0;
  uint64_t num_trained_tokens = 0;
  uint64_t num_truncated_documents = 0;
  uint64_t num_dropped_documents = 0;
};

class RowSource {
 public:
  // Applies the overflow rule. With the rule "error", throws a config error at the first document that is too long.
  // Calls `poll` regularly while lengths are read; it may throw.
  RowSource(TokenStore store, const RowOptions& options, const DataSetConfig& config,
            const std::function<void()>& poll = {});

  // The rows of the first pass alone: each document once, in the rows and the order of training. Shares the store.
  RowSource once() const;
  // From now on the sequences of rows have these log-probabilities. NULL: they have none.
  void set_reference(std::shared_ptr<const ReferenceStore> reference) { reference_ = std::move(reference); }

  // Fills the next row, which must be all padding, and moves the cursor past it. Without one_pass there is no end:
  // after the last document comes the first of the next pass, in another order if shuffled.
  RowCounts fill(SetCursor& cursor, BatchRow row) const;
  // Moves the cursor past the next row, which belongs to another rank, and counts it without making it. Reads no token,
  // and labels only of a set whose labels differ from its tokens.
  RowCounts skip(SetCursor& cursor) const;

  // Rows of one pass; a fraction if the last row continues into the next pass.
  double num_rows() const;
  // Throws a config error that names both numbers if the cursor is outside the data.
  void require_inside(const SetCursor& cursor) const;

  // The number of documents longer than seq_len, unless documents are split.
  uint64_t num_long_documents() const { return num_long_documents_; }
  // These exclude what is dropped or cut because it is too long.
  uint64_t num_usable_documents() const { return num_usable_documents_; }
  uint64_t num_usable_tokens() const { return num_usable_tokens_; }
  // The fraction of a pass's positions that hold tokens; the others are padding.
  double utilisation() const;
  // Passes over the set up to the cursor.
  double num_passes(const SetCursor& cursor) const;

  const TokenStore& store() const { return *store_; }
  const DataSetConfig& config() const { return config_; }

 private:
  RowSource(std::shared_ptr<const TokenStore> tokens, const RowOptions& options, const DataSetConfig& config,
            const std::function<void()>& poll);
  DocumentSpan next_document(const SetCursor& cursor) const;
  // `row` is NULL if the row is only counted.
  RowCounts next(SetCursor& cursor, BatchRow* row) const;
  RowCounts next_packed(SetCursor& cursor, BatchRow* row) const;
  RowCounts next_single(SetCursor& cursor, BatchRow* row) const;
  RowCounts next_best_fit(SetCursor& cursor, BatchRow* row) const;
  void apply_overflow(const std::function<void()>& poll);
  void advance_document(SetCursor& cursor) const;

  std::shared_ptr<const TokenStore> store_;
  std::shared_ptr<const ReferenceStore> reference_;
  RowOptions options_;
  DataSetConfig config_;
  uint64_t num_long_documents_ = 0;
  uint64_t num_usable_documents_;
  uint64_t num_usable_tokens_;
  std::optional<BestFitRows> best_fit_;
};

}  // namespace chassis
