// Attention over key intervals: a block of queries is multiplied only with the keys that at least one of them sees, so
// causal masks halve the cost, and packed documents cost only their own squares. Backward recomputes the scores from
// the saved log-sum-exp (Dao et al. 2022). Everything is computed in fp32: where no instruction multiplies bf16
// (bf16_blocks.hpp), bf16 operands are widened a block or a head at a time, and results are rounded once.
//
// B rows, T queries, S keys, N query heads, K key heads of N/K query heads each, D dims of q and k, E dims of v.
#include "attention.hpp"

#include <algorithm>
#include <type_traits>

#include "chassis/memory.hpp"
#include "chassis/task.hpp"
#include "grain.hpp"
#include "intervals.hpp"
#include "single_query.hpp"
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

// Rows in fp32: those of a tensor, or copies.
struct Rows {
  float* data;
  int64_t stride;
  float* at(int64_t row) const { return data + row * stride; }
};
struct ConstRows {
  const float* data;
  int64_t stride;
  const float* at(int64_t row) const { return data + row * stride; }
};

float value_of(float x) { return x; }
float value_of(Bf16 x) { return from_bf16(x); }

// The number of floats that a copy of `count` elements of T needs.
template <typename T>
constexpr int64_t copied(int64_t count) {
  return std::is_same_v<T, float> ? 0 : count;
}

ConstRows read(const float* from, int64_t stride, int64_t, int64_t, float*) { return {from, stride}; }
ConstRows read(const Bf16* from, int64_t stride, int64_t rows, int64_t columns, float* copy) {
  for (int64_t r = 0; r < rows; ++r) tiles().bf16.widen(from + r * stride, copy + r * columns, columns);
  return {copy, columns};
}

// The place to compute values that write() then stores in `to`.
Rows place(float* to, int64_t stride, int64_t, float*) { return {to, stride}; }
Rows place(Bf16*, int64_t, int64_t columns, float* copy) { return {copy, columns}; }
void write(const Rows&, float*, int64_t, int64_t, int64_t) {}
void write(const Rows& from, Bf16* to, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) tiles().bf16.narrow(from.at(r), to + r * stride, columns);
}

// Transposes [S, dim] of one head to [dim, padded(S)].
template <typename T>
void transpose(const T* from, int64_t row_stride, int64_t rows, int64_t dim, float* to, int64_t ld) {
  for (int64_t d = 0; d < dim; ++d) std::fill(to + d * ld + rows, to + (d + 1) * ld, 0.0f);
  for (int64_t begin = 0; begin < rows; begin += 16)
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t r = begin; r < std::min(begin + 16, rows); ++r) to[d * ld + r] = value_of(from[r * row_stride + d]);
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

template <typename T>
class Attention final : public Kernel {
 public:
  Attention(Mask mask, float scale, float softcap) : mask_(mask), scale_(scale), softcap_(softcap) {}

  void forward(Call& call) override {
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2), out = call.output(0);
    const Sizes s(q, k, v);
    if (s.T == 1) return attend_single_queries<T>(call, mask_, scale_, softcap_);
    const auto intervals = intervals_of(call, s);
    Tensor saved = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {s.B, s.N, s.T});
    float* lse = saved.data<float>();
    const int64_t ld = padded(s.S);
    const T *pq = q.data<T>(), *pk = k.data<T>(), *pv = v.data<T>();
    T* po = out.data<T>();
    Scratch<float> transposed(call.host(), s.B * s.K * s.D * ld), copies(call.host(), copied<T>(s.B * s.K * s.S * s.E));
    const auto values = [&](int64_t head) { return pv + (head / s.K * s.S * s.K + head % s.K) * s.E; };
    const auto values_in_fp32 = [&](int64_t head) -> ConstRows {
      if constexpr (std::is_same_v<T, float>) return {values(head), s.K * s.E};
      return {copies.data() + head * s.S * s.E, s.E};
    };
    parallel_for(call.host(), s.B * s.K, copy_grain(s.S * (s.D + s.E)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        transpose(pk + (i / s.K * s.S * s.K + i % s.K) * s.D, s.K * s.D, s.S, s.D, transposed.data() + i * s.D * ld,
                  ld);
        read(values(i), s.K * s.E, s.S, s.E, copies.data() + copied<T>(i * s.S * s.E));
      }
    });
    const int64_t grain = product_grain(2 * std::min(kQueryBlock, s.T) * s.S * (s.D + s.E));
    parallel_for(call.host(), s.B * s.N * s.blocks(), grain, [&](int64_t begin, int64_t end) {
      Scratch<float> scores(call.host(), kQueryBlock * ld), queries(call.host(), copied<T>(kQueryBlock * s.D)),
          outputs(call.host(), copied<T>(kQueryBlock * s.E));
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / (s.N * s.blocks()), n = task / s.blocks() % s.N, kh = n / s.group();
        const Block block(intervals, s, b, task % s.blocks(), ld);
        const int64_t row = b * s.T + block.first;
        T* const to = po + (row * s.N + n) * s.E;
        const Rows o = place(to, s.N * s.E, s.E, outputs.data());
        const ConstRows block_q = read(pq + (row * s.N + n) * s.D, s.N * s.D, block.count, s.D, queries.data());
        if (block.length > 0)
          tiles().product(block.count, block.length, s.D, block_q.data, block_q.stride, 1,
                          transposed.data() + (b * s.K + kh) * s.D * ld + block.begin, ld, scores.data(), ld, false);
        for (int64_t i = 0; i < block.count; ++i) {
          float* const x = scores.data() + i * ld;
          const int64_t lo = block.seen[i].begin - block.begin, hi = block.seen[i].end - block.begin;
          if (softcap_ > 0) tiles().softcap(x, nullptr, lo, hi, scale_, softcap_);
          lse[(b * s.N + n) * s.T + block.first + i] = tiles().softmax(x, block.length, lo, hi, softmax_scale());
        }
        const ConstRows seen_v = values_in_fp32(b * s.K + kh);
        tiles().product(block.count, s.E, block.keys(s), scores.data(), ld, 1, seen_v.at(block.begin), seen_v.stride,
                        o.data, o.stride, false);
        write(o, to, s.N * s.E, block.count, s.E);
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
    const int64_t grain = product_grain(2 * s.group() * s.T * s.S * (3 * s.D + 2 * s.E));
    parallel_for(call.host(), s.B * s.K, grain, [&](int64_t begin, int64_t end) {
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
    const T* const key_head = call.input(1).data<T>() + (b * s.S * s.K + kh) * s.D;
    const T* const value_head = call.input(2).data<T>() + (b * s.S * s.K + kh) * s.E;
    T* const dk_head = dk.data<T>() + (b * s.S * s.K + kh) * s.D;
    T* const dv_head = dv.data<T>() + (b * s.S * s.K + kh) * s.E;
    Scratch<float> key_copy(call.host(), copied<T>(s.S * s.D)), dk_sums(call.host(), copied<T>(s.S * s.D)),
        dv_sums(call.host(), copied<T>(s.S * s.E)), q_copy(call.host(), copied<T>(kQueryBlock * s.D)),
        dq_sums(call.host(), copied<T>(kQueryBlock * s.D)), o_copy(call.host(), copied<T>(kQueryBlock * s.E)),
        d_copy(call.host(), copied<T>(kQueryBlock * s.E));
    const ConstRows keys = read(key_head, key_row, s.S, s.D, key_copy.data());
    const Rows to_keys = place(dk_head, key_row, s.D, dk_sums.data()),
               to_values = place(dv_head, value_row, s.E, dv_sums.data());
    Scratch<float> keys_t(call.host(), s.D * ld), values_t(call.host(), s.E * ld), p(call.host(), kQueryBlock * ld),
        dp(call.host(), kQueryBlock * ld), slopes(call.host(), softcap_ > 0 ? kQueryBlock * ld : 0);
    transpose(key_head, key_row, s.S, s.D, keys_t.data(), ld);
    transpose(value_head, value_row, s.S, s.E, values_t.data(), ld);
    for (int64_t r = 0; r < s.S; ++r) {
      std::fill_n(to_keys.at(r), s.D, 0.0f);
      std::fill_n(to_values.at(r), s.E, 0.0f);
    }
    for (int64_t n = kh * s.group(); n < (kh + 1) * s.group(); ++n)
      for (int64_t index = 0; index < s.blocks(); ++index) {
        const Block block(intervals, s, b, index, ld);
        const int64_t row = b * s.T + block.first, query_row = s.N * s.D, out_row = s.N * s.E;
        const ConstRows q = read(call.input(0).data<T>() + (row * s.N + n) * s.D, query_row, block.count, s.D,
                                 q_copy.data()),
                        o = read(call.output(0).data<T>() + (row * s.N + n) * s.E, out_row, block.count, s.E,
                                 o_copy.data()),
                        d = read(call.grad_output(0).data<T>() + (row * s.N + n) * s.E, out_row, block.count, s.E,
                                 d_copy.data());
        const float* lse = call.saved(0).data<float>() + (b * s.N + n) * s.T + block.first;
        T* const dq_block = dq.data<T>() + (row * s.N + n) * s.D;
        const Rows to_q = place(dq_block, query_row, s.D, dq_sums.data());
        const int64_t seen = block.keys(s);
        if (block.length > 0) {
          tiles().product(block.count, block.length, s.D, q.data, q.stride, 1, keys_t.data() + block.begin, ld,
                          p.data(), ld, false);
          tiles().product(block.count, block.length, s.E, d.data, d.stride, 1, values_t.data() + block.begin, ld,
                          dp.data(), ld, false);
        }
        for (int64_t i = 0; i < block.count; ++i) {
          float* const x = p.data() + i * ld;
          const int64_t lo = block.seen[i].begin - block.begin, hi = block.seen[i].end - block.begin;
          if (softcap_ > 0) tiles().softcap(x, slopes.data() + i * ld, lo, hi, scale_, softcap_);
          tiles().probabilities(x, block.length, lo, hi, softmax_scale(), lse[i]);
        }
        tiles().product(seen, s.E, block.count, p.data(), 1, ld, d.data, d.stride, to_values.at(block.begin),
                        to_values.stride, true);
        for (int64_t i = 0; i < block.count; ++i) {
          tiles().score_gradient(p.data() + i * ld, dp.data() + i * ld, block.length,
                                 tiles().fp32.dot(o.at(i), d.at(i), s.E), scale_);
          if (softcap_ > 0)
            tiles().multiply(p.data() + i * ld, slopes.data() + i * ld, block.seen[i].begin - block.begin,
                             block.seen[i].end - block.begin);
        }
        tiles().product(block.count, s.D, seen, p.data(), ld, 1, keys.at(block.begin), keys.stride, to_q.data,
                        to_q.stride, false);
        write(to_q, dq_block, query_row, block.count, s.D);
        tiles().product(seen, s.D, block.count, p.data(), 1, ld, q.data, q.stride, to_keys.at(block.begin),
                        to_keys.stride, true);
      }
    write(to_keys, dk_head, key_row, s.S, s.D);
    write(to_values, dv_head, value_row, s.S, s.E);
  }

  // Capped scores are already scaled.
  float softmax_scale() const { return softcap_ > 0 ? 1.0f : scale_; }

  Mask mask_;
  float scale_, softcap_;
};

bool is_copied(const NodeView& node) { return node.input(0).dtype() == CHASSIS_DTYPE_BF16; }

}  // namespace

uint64_t forward_bytes(const NodeView& node) {
  const OperandView k = node.input(1), v = node.input(2);
  const int64_t heads = k.size(0) * k.size(2);
  const int64_t copies = is_copied(node) ? v.num_elements() : 0;
  return static_cast<uint64_t>(heads * k.size(3) * padded(k.size(1)) + copies) * 4;
}

uint64_t forward_thread_bytes(const NodeView& node) {
  const int64_t copies = is_copied(node) ? node.input(1).size(3) + node.input(2).size(3) : 0;
  return static_cast<uint64_t>(kQueryBlock * (padded(node.input(1).size(1)) + copies)) * 4;
}

uint64_t backward_thread_bytes(const NodeView& node) {
  const int64_t keys = node.input(1).size(1), dim = node.input(1).size(3), value_dim = node.input(2).size(3);
  const int64_t blocks = node.op(0).has_attr("softcap") ? 3 : 2;
  const int64_t copies = is_copied(node) ? keys * (2 * dim + value_dim) + 2 * kQueryBlock * (dim + value_dim) : 0;
  return static_cast<uint64_t>((blocks * kQueryBlock + dim + value_dim) * padded(keys) + copies) * 4;
}

std::unique_ptr<Kernel> make_attention(const NodeView& node) {
  const Mask mask(node.op(0));
  const auto scale = static_cast<float>(node.op(0).attr_float("scale"));
  const auto softcap = static_cast<float>(node.op(0).attr_float("softcap", 0));
  if (is_copied(node)) return std::make_unique<Attention<Bf16>>(mask, scale, softcap);
  return std::make_unique<Attention<float>>(mask, scale, softcap);
}

}  // namespace interval
