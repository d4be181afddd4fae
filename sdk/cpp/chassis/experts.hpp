// The rows of experts, in the order that chassis/op.h gives them: expert by expert, and for each in the order of
// tokens.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "chassis/guard.hpp"

CHASSIS_SDK_BEGIN

// Throws unless `expert` is -1 or below `num_experts`. The message names the ops that choose experts, since the op that
// reads the index, by which the host begins it, is not the cause.
inline void check_expert(int32_t expert, int64_t num_experts) {
  if (expert >= -1 && expert < num_experts) return;
  const std::string expected = expert < 0 ? "0 or more, or -1 for none" : "below " + std::to_string(num_experts);
  throw Failure(CHASSIS_INVALID_ARGUMENT, "input 'experts' has the index ", expert, ", expected ", expected,
                "; it comes from the model's op that chooses experts, such as top_experts, not from this op");
}

// The number of experts of which pairs have some; a reader that has no parameter of the experts needs no other.
inline int64_t num_experts_in(const int32_t* experts, int64_t num_pairs) {
  int64_t count = 0;
  for (int64_t p = 0; p < num_pairs; ++p)
    if (experts[p] >= count) count = int64_t{experts[p]} + 1;
  return count;
}

// A pair is a token with one of its k experts: pair p belongs to token p / k. Pairs without an expert (-1) have no row.
class ExpertRows {
 public:
  // `experts` [num_pairs] are indices of experts below `num_experts`, or -1. A counting sort: O(pairs + experts).
  ExpertRows(const int32_t* experts, int64_t num_pairs, int64_t num_experts)
      : begin_(static_cast<size_t>(num_experts) + 1), row_(static_cast<size_t>(num_pairs), -1) {
    for (int64_t p = 0; p < num_pairs; ++p) {
      check_expert(experts[p], num_experts);
      if (experts[p] >= 0) ++begin_[static_cast<size_t>(experts[p]) + 1];
    }
    for (size_t e = 1; e < begin_.size(); ++e) begin_[e] += begin_[e - 1];
    pair_.resize(static_cast<size_t>(begin_.back()));
    std::vector<int64_t> next(begin_.begin(), begin_.end() - 1);
    for (int64_t p = 0; p < num_pairs; ++p)
      if (experts[p] >= 0) {
        const int64_t row = next[static_cast<size_t>(experts[p])]++;
        row_[static_cast<size_t>(p)] = row;
        pair_[static_cast<size_t>(row)] = p;
      }
  }
  // Up to the last expert that has a row.
  ExpertRows(const int32_t* experts, int64_t num_pairs)
      : ExpertRows(experts, num_pairs, num_experts_in(experts, num_pairs)) {}

  int64_t num_experts() const { return static_cast<int64_t>(begin_.size()) - 1; }
  int64_t num_rows() const { return begin_.back(); }
  // Rows of an expert: [begin(e), end(e)).
  int64_t begin(int64_t expert) const { return begin_[static_cast<size_t>(expert)]; }
  int64_t end(int64_t expert) const { return begin_[static_cast<size_t>(expert) + 1]; }
  // The row of a pair; -1: none. And the pair of a row.
  int64_t row(int64_t pair) const { return row_[static_cast<size_t>(pair)]; }
  int64_t pair(int64_t row) const { return pair_[static_cast<size_t>(row)]; }

 private:
  std::vector<int64_t> begin_, row_, pair_;
};

// Sets the rows that no expert has, after those that experts have, to 0; `rows` is [num_pairs, width].
template <typename T>
void zero_rest(T* rows, const ExpertRows& order, int64_t num_pairs, int64_t width) {
  std::memset(rows + order.num_rows() * width, 0,
              static_cast<size_t>((num_pairs - order.num_rows()) * width) * sizeof(T));
}

CHASSIS_SDK_END
