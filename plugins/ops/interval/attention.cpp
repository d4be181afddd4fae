// Attention over key intervals: a block of queries is multiplied only with the keys that at least one of them sees, so
// causal masks halve the cost, and packed documents cost only their own squares. Backward recomputes the scores from
// the saved log-sum-exp (Dao et al. 2022).
//
// B rows, T queries, S keys, N query heads, K key heads of N/K query heads each, D dims of q and k, E dims of v.
#include "attention.hpp"

#include <algorithm>

#include "chassis/memory.hpp"
#include "chassis/task.hpp"
#include "intervals.hpp"
#include "tiles.hpp"

namespace interval {

using namespace chassis;

namespace {

constexpr int64_t kQueryBlock = 64;
constexpr int64_t kPad = 16;  // floats; rows of scratch are padded to whole vectors of any width

int64_t padded(int64_t count) { return (count + kPad - 1) / kPad * kPad; }

struct Sizes {
  int64_t B, T, S, N, K, D, E;

  explicit Sizes(const BorrowedTensor& q, const BorrowedTensor& k, const BorrowedTensor& v)
      : B(q.size(0)), T(q.size(1)), S(k.size(1)), N(q.size(2)), K(k.size(2)), D(q.size(3)), E(v.size(3)) {}
  int64_t group() const { return N / K; }
  int64_t blocks() const { return (T + kQueryBlock - 1) / kQueryBlock; }
};

// Transposes [S, dim] of one head to [dim, padded(S)].
void transpose(const float* from, int64_t row_stride, int64_t rows, int64_t dim, float* to, int64_t ld) {
  for (int64_t d = 0; d < dim; ++d) std::fill(to + d * ld + rows, to + (d + 1) * ld, 0.0f);
  for (int64_t begin = 0; begin < rows; begin += 16)
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t r = begin; r < std::min(begin + 16, rows); ++r) to[d * ld + r] = from[r * row_stride + d];
}

// The queries of one block, and the range of keys that at least one of them sees.
struct Block {
  int64_t first, count;   // queries
  int64_t begin, length;  // keys; length is padded where the keys allow it
  const KeyInterval* seen;

  Block(const std::vector<KeyInterval>& intervals, const Sizes& s, int64_t b, int64_t index, int64_t ld)
      : first(index * kQueryBlock),
        count(std::min(kQueryBlock, s.T - index * kQueryBlock)),
        begin(s.S),
        length(0),
        seen(intervals.data() + b * s.T + first) {
    int64_t end = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (seen[i].end <= seen[i].begin) continue;
      begin = std::min(begin, seen[i].begin);
      end = std::max(end, seen[i].end);
    }
    if (end <= begin) begin = end = 0;
    length = std::min(padded(end - begin), ld - begin);
  }
  // Number of keys without padding.
  int64_t keys(const Sizes& s) const { return std::min(length, s.S - begin); }
};

class Attention final : public Kernel {
 public:
  Attention(Mask mask, float scale, float softcap) : mask_(mask), scale_(scale), softcap_(softcap) {}

  void forward(Call& call) override {
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2), out = call.output(0);
    const Sizes s(q, k, v);
    const auto intervals = intervals_of(call, s);
    Tensor saved = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {s.B, s.N, s.T});
    float* lse = saved.data<float>();
    const int64_t ld = padded(s.S);
    const float *pq = q.data<float>(), *pk = k.data<float>(), *pv = v.data<float>();
    float* po = out.data<float>();
    Scratch<float> transposed(call.host(), s.B * s.K * s.D * ld);
    parallel_for(call.host(), s.B * s.K, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        transpose(pk + (i / s.K * s.S * s.K + i % s.K) * s.D, s.K * s.D, s.S, s.D, transposed.data() + i * s.D * ld,
                  ld);
    });
    parallel_for(call.host(), s.B * s.N * s.blocks(), 1, [&](int64_t begin, int64_t end) {
      Scratch<float> scores(call.host(), kQueryBlock * ld);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / (s.N * s.blocks()), n = task / s.blocks() % s.N, kh = n / s.group();
        const Block block(intervals, s, b, task % s.blocks(), ld);
        const int64_t row = b * s.T + block.first;
        float* o = po + (row * s.N + n) * s.E;
        if (block.length > 0)
          tiles().product(block.count, block.length, s.D, pq + (row * s.N + n) * s.D, s.N * s.D, 1,
                          transposed.data() + (b * s.K + kh) * s.D * ld + block.begin, ld, scores.data(), ld, false);
        for (int64_t i = 0; i < block.count; ++i) {
          float* const x = scores.data() + i * ld;
          const int64_t lo = block.seen[i].begin - block.begin, hi = block.seen[i].end - block.begin;
          if (softcap_ > 0) tiles().softcap(x, nullptr, lo, hi, scale_, softcap_);
          lse[(b * s.N + n) * s.T + block.first + i] = tiles().softmax(x, block.length, lo, hi, softmax_scale());
        }
        tiles().product(block.count, s.E, block.keys(s), scores.data(), ld, 1,
                        pv + ((b * s.S + block.begin) * s.K + kh) * s.E, s.K * s.E, o, s.N * s.E, false);
      }
    });
    if (mask_.has_key_part) mark_unseen(intervals, s.B, s.N, s.T, lse);
    call.save(0, std::move(saved));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2), dout = call.grad_output(0);
    if (!dout) return;
    const Sizes s(q, k, v);
    Tensor dq = Tensor::create_like(call.host(), q), dk = Tensor::create_like(call.host(), k),
           dv = Tensor::create_like(call.host(), v);
    const auto intervals = intervals_of(call, s);
    // One thread computes a key head with all its query heads, so that sums over queries have a fixed order.
    parallel_for(call.host(), s.B * s.K, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) backward_head(call, s, intervals, i / s.K, i % s.K, dq, dk, dv);
    });
    if (call.wants_grad_input(0)) call.set_grad_input(0, std::move(dq));
    if (call.wants_grad_input(1)) call.set_grad_input(1, std::move(dk));
    if (call.wants_grad_input(2)) call.set_grad_input(2, std::move(dv));
  }

 private:
  std::vector<KeyInterval> intervals_of(Call& call, const Sizes& s) const {
    return key_intervals(mask_, s.B, s.T, s.S, Positions(mask_, call, s.S), call.input(3), call.input(4));
  }

  void backward_head(Call& call, const Sizes& s, const std::vector<KeyInterval>& intervals, int64_t b, int64_t kh,
                     const Tensor& dq, const Tensor& dk, const Tensor& dv) const {
    const int64_t ld = padded(s.S), key_row = s.K * s.D, value_row = s.K * s.E;
    const float* keys = call.input(1).data<float>() + (b * s.S * s.K + kh) * s.D;
    const float* values = call.input(2).data<float>() + (b * s.S * s.K + kh) * s.E;
    float *to_keys = dk.data<float>() + (b * s.S * s.K + kh) * s.D,
          *to_values = dv.data<float>() + (b * s.S * s.K + kh) * s.E;
    Scratch<float> keys_t(call.host(), s.D * ld), values_t(call.host(), s.E * ld), p(call.host(), kQueryBlock * ld),
        dp(call.host(), kQueryBlock * ld), slopes(call.host(), softcap_ > 0 ? kQueryBlock * ld : 0);
    transpose(keys, key_row, s.S, s.D, keys_t.data(), ld);
    transpose(values, value_row, s.S, s.E, values_t.data(), ld);
    for (int64_t r = 0; r < s.S; ++r) {
      std::fill_n(to_keys + r * key_row, s.D, 0.0f);
      std::fill_n(to_values + r * value_row, s.E, 0.0f);
    }
    for (int64_t n = kh * s.group(); n < (kh + 1) * s.group(); ++n)
      for (int64_t index = 0; index < s.blocks(); ++index) {
        const Block block(intervals, s, b, index, ld);
        const int64_t row = b * s.T + block.first, query_row = s.N * s.D, out_row = s.N * s.E;
        const float* q = call.input(0).data<float>() + (row * s.N + n) * s.D;
        const float *o = call.output(0).data<float>() + (row * s.N + n) * s.E,
                    *d = call.grad_output(0).data<float>() + (row * s.N + n) * s.E;
        const float* lse = call.saved(0).data<float>() + (b * s.N + n) * s.T + block.first;
        float* to_q = dq.data<float>() + (row * s.N + n) * s.D;
        const int64_t seen = block.keys(s);
        if (block.length > 0) {
          tiles().product(block.count, block.length, s.D, q, query_row, 1, keys_t.data() + block.begin, ld, p.data(),
                          ld, false);
          tiles().product(block.count, block.length, s.E, d, out_row, 1, values_t.data() + block.begin, ld, dp.data(),
                          ld, false);
        }
        for (int64_t i = 0; i < block.count; ++i) {
          float* const x = p.data() + i * ld;
          const int64_t lo = block.seen[i].begin - block.begin, hi = block.seen[i].end - block.begin;
          if (softcap_ > 0) tiles().softcap(x, slopes.data() + i * ld, lo, hi, scale_, softcap_);
          tiles().probabilities(x, block.length, lo, hi, softmax_scale(), lse[i]);
        }
        tiles().product(seen, s.E, block.count, p.data(), 1, ld, d, out_row, to_values + block.begin * value_row,
                        value_row, true);
        for (int64_t i = 0; i < block.count; ++i) {
          tiles().score_gradient(p.data() + i * ld, dp.data() + i * ld, block.length,
                                 tiles().dot(o + i * out_row, d + i * out_row, s.E), scale_);
          if (softcap_ > 0)
            tiles().multiply(p.data() + i * ld, slopes.data() + i * ld, block.seen[i].begin - block.begin,
                             block.seen[i].end - block.begin);
        }
        tiles().product(block.count, s.D, seen, p.data(), ld, 1, keys + block.begin * key_row, key_row, to_q, query_row,
                        false);
        tiles().product(seen, s.D, block.count, p.data(), 1, ld, q, query_row, to_keys + block.begin * key_row, key_row,
                        true);
      }
  }

  // Capped scores are already scaled.
  float softmax_scale() const { return softcap_ > 0 ? 1.0f : scale_; }

  Mask mask_;
  float scale_, softcap_;
};

}  // namespace

uint64_t forward_scratch_bytes(int64_t keys) { return static_cast<uint64_t>(kQueryBlock * padded(keys)) * 4; }

uint64_t backward_scratch_bytes(int64_t keys, int64_t dim, int64_t value_dim, bool softcap) {
  return static_cast<uint64_t>(((softcap ? 3 : 2) * kQueryBlock + dim + value_dim) * padded(keys)) * 4;
}

std::unique_ptr<Kernel> make_attention(const NodeView& node) {
  return std::make_unique<Attention>(Mask(node.op(0)), static_cast<float>(node.op(0).attr_float("scale")),
                                     static_cast<float>(node.op(0).attr_float("softcap", 0)));
}

}  // namespace interval
