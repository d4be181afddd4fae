// Attention of one query in each row, as in generation: keys and values are read once, where they lie.
#pragma once

#include <algorithm>

#include "bf16.hpp"
#include "chassis/memory.hpp"
#include "chassis/ops.hpp"
#include "chassis/task.hpp"
#include "intervals.hpp"
#include "tiles.hpp"

namespace interval {

// The forward pass of a call with T = 1, for operands of T: float or Bf16. Everything is computed in fp32.
template <typename T>
void attend_single_queries(chassis::Call& call, const Mask& mask, float scale, float softcap) {
  using namespace chassis;
  const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2), out = call.output(0);
  const int64_t rows = q.size(0), keys = k.size(1), heads = q.size(2), key_heads = k.size(2), group = heads / key_heads,
                dim = q.size(3), value_dim = v.size(3);
  const auto intervals = key_intervals(mask, rows, 1, keys, Positions(mask, call, keys), call.input(3), call.input(4));
  Tensor saved = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {rows, heads, 1});
  float* const lse = saved.data<float>();
  constexpr int64_t kFlopsOfThread = 1 << 16;
  const int64_t grain = std::max<int64_t>(1, kFlopsOfThread / std::max<int64_t>(1, keys * (dim + value_dim)));
  parallel_for(call.host(), rows * heads, grain, [&](int64_t begin, int64_t end) {
    Scratch<float> scores(call.host(), keys), query(call.host(), dim), sum(call.host(), value_dim);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / heads, key_head = i % heads / group;
      const KeyInterval seen = intervals[static_cast<size_t>(row)];
      const T* const key = k.data<T>() + (row * keys * key_heads + key_head) * dim;
      const T* const value = v.data<T>() + (row * keys * key_heads + key_head) * value_dim;
      const LoopsOf<T> loops = tiles().loops_of(T{});
      loops.widen(q.data<T>() + i * dim, query.data(), dim);
      for (int64_t s = seen.begin; s < seen.end; ++s)
        scores[s] = loops.dot(query.data(), key + s * key_heads * dim, dim);
      if (softcap > 0) tiles().softcap(scores.data(), nullptr, seen.begin, seen.end, scale, softcap);
      lse[i] = tiles().softmax(scores.data(), keys, seen.begin, seen.end, softcap > 0 ? 1.0f : scale);
      std::fill_n(sum.data(), value_dim, 0.0f);
      for (int64_t s = seen.begin; s < seen.end; ++s)
        loops.add(scores[s], value + s * key_heads * value_dim, sum.data(), value_dim);
      loops.narrow(sum.data(), out.data<T>() + i * value_dim, value_dim);
    }
  });
  if (mask.has_key_part) mark_unseen(intervals, rows, heads, 1, lse);
  call.save(0, std::move(saved));
}

}  // namespace interval
