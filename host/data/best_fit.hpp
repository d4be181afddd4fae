// Rows of whole documents: which documents share a row, and in what order the rows come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "host/data/token_store.hpp"

namespace chassis {

struct RowOptions;

// Row r holds documents[begin[r]] to documents[begin[r + 1] - 1], in ascending order.
struct PackedRows {
  std::vector<uint32_t> documents;
  std::vector<uint32_t> begin = {0};
  size_t size() const { return begin.size() - 1; }
  std::span<const uint32_t> row(size_t index) const {
    return std::span(documents).subspan(begin[index], begin[index + 1] - begin[index]);
  }
};

// Best-fit decreasing: the longest document first, each into the row with the least room that still holds it. Lengths
// are at most seq_len. Depends only on its arguments.
PackedRows pack_best_fit(std::span<const uint64_t> lengths, uint64_t seq_len);

// A set is packed in windows of about this many documents, so that memory does not depend on the size of the set.
constexpr uint64_t kPackingWindow = 10'000;

// The rows of a set. Which documents share a row depends on the seed alone, so that every pass has the same number of
// rows; each pass shuffles the windows, and the rows of each window. Without shuffling, both keep their order.
class BestFitRows {
 public:
  // Reads all lengths. Calls `poll` once per window; it may throw.
  BestFitRows(const TokenStore& store, const RowOptions& options, const std::function<void()>& poll);
  BestFitRows(BestFitRows&&) noexcept;
  ~BestFitRows();

  uint64_t num_rows() const { return num_rows_; }
  uint64_t num_tokens() const { return num_tokens_; }  // in all rows, without padding

  struct Row {
    std::vector<DocumentSpan> documents;  // not yet truncated: one may be longer than seq_len
    uint64_t num_dropped = 0;             // documents that are too long, in the first row of their window
  };
  // [any] Consecutive rows of one window are fast; a change of window takes as long as packing it.
  Row row(const TokenStore& store, uint64_t epoch, uint64_t index) const;

 private:
  struct Window;
  struct Place;
  Window pack(const TokenStore& store, uint64_t window) const;
  uint64_t num_windows() const { return rows_of_window_.size(); }

  uint64_t seq_len_, seed_, stream_;
  bool shuffle_, drops_;
  std::vector<uint32_t> rows_of_window_;
  uint64_t num_rows_ = 0, num_tokens_ = 0;
  std::unique_ptr<Place> place_;  // the window of the last row
};

}  // namespace chassis
