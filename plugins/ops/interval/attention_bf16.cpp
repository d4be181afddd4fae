// Attention by blocks of queries, as in attention.cpp, multiplied in bf16. Sums are fp32; weights and gradients of
// scores are rounded to bf16 before they are multiplied (Dao et al. 2022).
#include "attention_bf16.hpp"

#include <algorithm>
#include <vector>

#include "bf16_blocks.hpp"
#include "chassis/amx.hpp"
#include "chassis/memory.hpp"
#include "chassis/task.hpp"
#include "grain.hpp"
#include "intervals.hpp"
#include "single_query.hpp"

namespace interval {

using namespace chassis;

namespace {

constexpr int64_t kChunk = 256;  // keys at a time in backward

int64_t to_tile(int64_t count) { return (count + kTile - 1) / kTile * kTile; }

struct Bf16Sizes {
  int64_t B, T, S, N, K, D, E;  // as in attention.cpp
  int64_t Sp, Dp, Ep;           // padded

  Bf16Sizes(const BorrowedTensor& q, const BorrowedTensor& k, const BorrowedTensor& v)
      : B(q.size(0)),
        T(q.size(1)),
        S(k.size(1)),
        N(q.size(2)),
        K(k.size(2)),
        D(q.size(3)),
        E(v.size(3)),
        Sp(to_tile(S)),
        Dp(to_tile(D)),
        Ep(to_tile(E)) {}
  int64_t group() const { return N / K; }
  int64_t blocks() const { return (T + kColumns - 1) / kColumns; }
};

// The queries of one block, the keys that each sees, and the range of whole tiles that covers them.
struct Bf16Block {
  int64_t first, count;
  int64_t begin = 0, end = 0;
  int32_t lo[kColumns] = {}, hi[kColumns] = {};

  Bf16Block(const std::vector<KeyInterval>& intervals, const Bf16Sizes& s, int64_t b, int64_t index)
      : first(index * kColumns), count(std::min(kColumns, s.T - first)) {
    const KeyInterval* seen = intervals.data() + b * s.T + first;
    int64_t least = s.S, most = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (seen[i].end <= seen[i].begin) continue;
      lo[i] = static_cast<int32_t>(seen[i].begin), hi[i] = static_cast<int32_t>(seen[i].end);
      least = std::min(least, seen[i].begin), most = std::max(most, seen[i].end);
    }
    if (most > least) begin = least / kTile * kTile, end = to_tile(most);
  }
  int64_t keys() const { return end - begin; }
};

// Configures the tiles of this thread while it lives.
class TileScope {
 public:
  TileScope() { bf16_blocks()->begin(); }
  ~TileScope() { bf16_blocks()->end(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Rows of queries, or of their gradients, as factors of products that sum over the dim or over the queries.
struct QueryFactors {
  QueryFactors(const Host& host, int64_t padded)
      : rows(host, kColumns * padded), by_dim(host, kColumns * padded / 2), by_query(host, kColumns * padded / 2) {}
  void load(const Bf16* from, int64_t row_stride, int64_t count, int64_t columns, int64_t padded) {
    bf16_blocks()->copy(from, row_stride, count, columns, rows.data(), kColumns, padded);
    bf16_blocks()->pair_columns(rows.data(), kColumns, padded, by_dim.data());
    bf16_blocks()->pair_rows(rows.data(), kColumns, padded, by_query.data());
  }
  static uint64_t bytes(int64_t padded) { return static_cast<uint64_t>(kColumns * padded) * 6; }

  Scratch<Bf16> rows;
  Scratch<Bf16Pair> by_dim, by_query;
};

class Bf16Attention final : public Kernel {
 public:
  Bf16Attention(Mask mask, float scale, float softcap) : mask_(mask), scale_(scale), softcap_(softcap) {}

  void forward(Call& call) override {
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2), out = call.output(0);
    const Bf16Sizes s(q, k, v);
    if (s.T == 1) return attend_single_queries<Bf16>(call, mask_, scale_, softcap_);
    const auto intervals = intervals_of(call, s);
    Tensor saved = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {s.B, s.N, s.T});
    float* const lse = saved.data<float>();
    const Bf16 *const pq = q.data<Bf16>(), *const pk = k.data<Bf16>(), *const pv = v.data<Bf16>();
    Bf16* const po = out.data<Bf16>();
    Scratch<Bf16> keys(call.host(), s.B * s.K * s.Sp * s.Dp), values(call.host(), s.B * s.K * s.Sp * s.Ep);
    parallel_for(call.host(), s.B * s.K, copy_grain(s.S * (s.D + s.E)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / s.K * s.S * s.K + i % s.K;
        bf16_blocks()->copy(pk + head * s.D, s.K * s.D, s.S, s.D, keys.data() + i * s.Sp * s.Dp, s.Sp, s.Dp);
        bf16_blocks()->transpose(pv + head * s.E, s.K * s.E, s.S, s.E, values.data() + i * s.Sp * s.Ep, s.Sp, s.Ep);
      }
    });
    const int64_t grain = product_grain(2 * std::min(kColumns, s.T) * s.S * (s.D + s.E));
    parallel_for(call.host(), s.B * s.N * s.blocks(), grain, [&](int64_t begin, int64_t end) {
      const TileScope tiles;
      QueryFactors queries(call.host(), s.Dp);
      Scratch<float> scores(call.host(), kColumns * s.Sp), sums(call.host(), kColumns * s.Ep);
      Scratch<Bf16Pair> weights(call.host(), kColumns * s.Sp / 2);
      float block_lse[kColumns], inverse[kColumns];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / (s.N * s.blocks()), n = task / s.blocks() % s.N;
        const int64_t head = b * s.K + n / s.group();
        const Bf16Block block(intervals, s, b, task % s.blocks());
        const int64_t row = b * s.T + block.first;
        queries.load(pq + (row * s.N + n) * s.D, s.N * s.D, block.count, s.D, s.Dp);
        bf16_blocks()->product(block.keys(), kColumns, s.Dp, keys.data() + (head * s.Sp + block.begin) * s.Dp, s.Dp,
                               queries.by_dim.data(), kColumns, scores.data(), kColumns, false);
        bf16_blocks()->softmax(scores.data(), block.begin, block.keys(), block.lo, block.hi, scale_, softcap_,
                               weights.data(), block_lse, inverse);
        bf16_blocks()->product(s.Ep, kColumns, block.keys(), values.data() + head * s.Ep * s.Sp + block.begin, s.Sp,
                               weights.data(), kColumns, sums.data(), kColumns, false);
        bf16_blocks()->store_transposed(sums.data(), kColumns, block.count, s.E, inverse, po + (row * s.N + n) * s.E,
                                        s.N * s.E);
        std::copy_n(block_lse, block.count, lse + (b * s.N + n) * s.T + block.first);
      }
    });
    if (mask_.has_key_part) mark_unseen(intervals, s.B, s.N, s.T, lse);
    call.save(0, std::move(saved));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2), dout = call.grad_output(0);
    if (!dout) return;
    const Bf16Sizes s(q, k, v);
    Tensor dq = Tensor::create_like(call.host(), q), dk = Tensor::create_like(call.host(), k),
           dv = Tensor::create_like(call.host(), v);
    const auto intervals = intervals_of(call, s);
    // One thread computes a key head with all its query heads, so that sums over queries have a fixed order.
    const int64_t grain = product_grain(2 * s.group() * s.T * s.S * (3 * s.D + 2 * s.E));
    parallel_for(call.host(), s.B * s.K, grain, [&](int64_t begin, int64_t end) {
      const TileScope tiles;
      KeyHead head(call.host(), s);
      for (int64_t i = begin; i < end; ++i) backward_head(call, s, intervals, i / s.K, i % s.K, head, dq, dk, dv);
    });
    if (call.wants_grad_input(0)) call.set_grad_input(0, std::move(dq));
    if (call.wants_grad_input(1)) call.set_grad_input(1, std::move(dk));
    if (call.wants_grad_input(2)) call.set_grad_input(2, std::move(dv));
  }

  // Scratch of backward for one key head.
  struct KeyHead {
    KeyHead(const Host& host, const Bf16Sizes& s)
        : keys(host, s.Sp * s.Dp),
          keys_t(host, s.Sp * s.Dp),
          values(host, s.Sp * s.Ep),
          dkeys(host, s.Sp * s.Dp),
          dvalues(host, s.Sp * s.Ep),
          dquery_t(host, kColumns * s.Dp),
          scores(host, kChunk * kColumns),
          products(host, kChunk * kColumns),
          p(host, kChunk * kColumns),
          ds(host, kChunk * kColumns),
          ds_pairs(host, kChunk * kColumns / 2),
          queries(host, s.Dp),
          gradients(host, s.Ep) {}
    static uint64_t bytes(int64_t keys, int64_t dim, int64_t value_dim) {
      return static_cast<uint64_t>(keys * (8 * dim + 6 * value_dim) + 4 * kColumns * dim + 14 * kChunk * kColumns) +
             QueryFactors::bytes(dim) + QueryFactors::bytes(value_dim);
    }

    Scratch<Bf16> keys, keys_t, values;
    Scratch<float> dkeys, dvalues, dquery_t, scores, products;
    Scratch<Bf16> p, ds;
    Scratch<Bf16Pair> ds_pairs;
    QueryFactors queries, gradients;
  };

 private:
  std::vector<KeyInterval> intervals_of(Call& call, const Bf16Sizes& s) const {
    return key_intervals(mask_, s.B, s.T, s.S, Positions(mask_, call, s.S), call.input(3), call.input(4));
  }

  void backward_head(Call& call, const Bf16Sizes& s, const std::vector<KeyInterval>& intervals, int64_t b, int64_t kh,
                     KeyHead& h, const Tensor& dq, const Tensor& dk, const Tensor& dv) const {
    const int64_t head = b * s.S * s.K + kh, key_row = s.K * s.D, value_row = s.K * s.E;
    const Bf16* const keys = call.input(1).data<Bf16>() + head * s.D;
    bf16_blocks()->copy(keys, key_row, s.S, s.D, h.keys.data(), s.Sp, s.Dp);
    bf16_blocks()->transpose(keys, key_row, s.S, s.D, h.keys_t.data(), s.Sp, s.Dp);
    bf16_blocks()->copy(call.input(2).data<Bf16>() + head * s.E, value_row, s.S, s.E, h.values.data(), s.Sp, s.Ep);
    std::ranges::fill(h.dkeys.span(), 0.0f);
    std::ranges::fill(h.dvalues.span(), 0.0f);
    for (int64_t n = kh * s.group(); n < (kh + 1) * s.group(); ++n)
      for (int64_t index = 0; index < s.blocks(); ++index) {
        const Bf16Block block(intervals, s, b, index);
        const int64_t row = b * s.T + block.first, query_row = s.N * s.D, out_row = s.N * s.E;
        const Bf16 *const o = call.output(0).data<Bf16>() + (row * s.N + n) * s.E,
                          *const d = call.grad_output(0).data<Bf16>() + (row * s.N + n) * s.E;
        h.queries.load(call.input(0).data<Bf16>() + (row * s.N + n) * s.D, query_row, block.count, s.D, s.Dp);
        h.gradients.load(d, out_row, block.count, s.E, s.Ep);
        float lse[kColumns] = {}, delta[kColumns] = {};
        std::copy_n(call.saved(0).data<float>() + (b * s.N + n) * s.T + block.first, block.count, lse);
        for (int64_t i = 0; i < block.count; ++i) delta[i] = bf16_blocks()->dot(o + i * out_row, d + i * out_row, s.E);
        backward_block(s, block, lse, delta, h);
        bf16_blocks()->store_transposed(h.dquery_t.data(), kColumns, block.count, s.D, nullptr,
                                        dq.data<Bf16>() + (row * s.N + n) * s.D, query_row);
      }
    bf16_blocks()->store(h.dkeys.data(), s.Dp, s.S, s.D, dk.data<Bf16>() + head * s.D, key_row);
    bf16_blocks()->store(h.dvalues.data(), s.Ep, s.S, s.E, dv.data<Bf16>() + head * s.E, value_row);
  }

  void backward_block(const Bf16Sizes& s, const Bf16Block& block, const float* lse, const float* delta,
                      KeyHead& h) const {
    std::ranges::fill(h.dquery_t.span(), 0.0f);
    for (int64_t first = block.begin; first < block.end; first += kChunk) {
      const int64_t count = std::min(kChunk, block.end - first);
      bf16_blocks()->product(count, kColumns, s.Dp, h.keys.data() + first * s.Dp, s.Dp, h.queries.by_dim.data(),
                             kColumns, h.scores.data(), kColumns, false);
      bf16_blocks()->product(count, kColumns, s.Ep, h.values.data() + first * s.Ep, s.Ep, h.gradients.by_dim.data(),
                             kColumns, h.products.data(), kColumns, false);
      bf16_blocks()->gradient(h.scores.data(), h.products.data(), first, count, block.lo, block.hi, scale_, softcap_,
                              lse, delta, h.p.data(), h.ds.data(), h.ds_pairs.data());
      bf16_blocks()->product(count, s.Ep, kColumns, h.p.data(), kColumns, h.gradients.by_query.data(), s.Ep,
                             h.dvalues.data() + first * s.Ep, s.Ep, true);
      bf16_blocks()->product(count, s.Dp, kColumns, h.ds.data(), kColumns, h.queries.by_query.data(), s.Dp,
                             h.dkeys.data() + first * s.Dp, s.Dp, true);
      bf16_blocks()->product(s.Dp, kColumns, count, h.keys_t.data() + first, s.Sp, h.ds_pairs.data(), kColumns,
                             h.dquery_t.data(), kColumns, true);
    }
  }

  Mask mask_;
  float scale_, softcap_;
};

}  // namespace

Bf16Unit bf16_unit() {
  static const Bf16Unit unit = has_amx_bf16()      ? Bf16Unit::kTiles
                               : has_avx512_bf16() ? Bf16Unit::kVectors
                                                   : Bf16Unit::kNone;
  return unit;
}

const Bf16Blocks* bf16_blocks() {
  static const Bf16Blocks* const table =
      bf16_unit() == Bf16Unit::kNone
          ? nullptr
          : for_best_isa([](auto isa) -> const Bf16Blocks* { return bf16_blocks(bf16_unit(), isa); });
  return table;
}

uint64_t bf16_forward_bytes(int64_t rows, int64_t keys, int64_t key_heads, int64_t dim, int64_t value_dim) {
  return static_cast<uint64_t>(rows * key_heads * to_tile(keys) * (to_tile(dim) + to_tile(value_dim))) * 2;
}

uint64_t bf16_forward_thread_bytes(int64_t keys, int64_t dim, int64_t value_dim) {
  return static_cast<uint64_t>(kColumns * (6 * to_tile(keys) + 4 * to_tile(value_dim))) +
         QueryFactors::bytes(to_tile(dim));
}

uint64_t bf16_backward_thread_bytes(int64_t keys, int64_t dim, int64_t value_dim) {
  return Bf16Attention::KeyHead::bytes(to_tile(keys), to_tile(dim), to_tile(value_dim));
}

std::unique_ptr<Kernel> make_bf16_attention(const NodeView& node) {
  return std::make_unique<Bf16Attention>(Mask(node.op(0)), static_cast<float>(node.op(0).attr_float("scale")),
                                         static_cast<float>(node.op(0).attr_float("softcap", 0)));
}

}  // namespace interval
