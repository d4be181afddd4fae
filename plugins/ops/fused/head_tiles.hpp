// Heads share this: logits in tiles of rows × vocabulary, with a running log-sum-exp, so that each weight that is read
// serves hundreds of rows. Only rows with a label are computed; they are copied together.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "head_sizes.hpp"
#include "kernels.hpp"

namespace fused {

// Uninitialised memory for the duration of a call, which the host counts as that of logits.
template <typename T>
class HeadMemory {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, Bf16>);

 public:
  HeadMemory(const Host& host, int64_t count)
      : tensor_(Tensor::create(host, std::is_same_v<T, float> ? CHASSIS_DTYPE_F32 : CHASSIS_DTYPE_BF16,
                               std::vector<int64_t>{count})),
        data_(tensor_.data<T>()) {}
  T* data() const noexcept { return data_; }
  T& operator[](int64_t i) const noexcept { return data_[i]; }

 private:
  Tensor tensor_;
  T* data_;
};

// T is the dtype of x and the weight, and P that of the factors of products: float, or T.
template <typename T, typename P>
class HeadTiles {
 public:
  // The softmax of a row over the tiles so far. Rationale: the label's part is separate, so that 1 - p of a confident
  // row keeps its bits.
  struct Row {
    float largest = -std::numeric_limits<float>::infinity();
    float label_logit = 0.0f;
    double others = 0.0;  // Σ exp(logit - largest) over the other classes

    double sum() const { return others + std::exp(static_cast<double>(label_logit) - largest); }
    float log_sum() const { return static_cast<float>(largest + std::log(sum())); }
    float logp() const { return static_cast<float>(static_cast<double>(label_logit) - largest - std::log(sum())); }
    float not_label() const { return static_cast<float>(others / sum()); }  // 1 - p of the label
  };

  struct Tile {
    int64_t index, first, columns;
    const P* weight;  // [columns, in]
  };

  // For blocks of at most `most_rows` rows of the call, and tiles of `columns` columns, of which the last may have
  // fewer.
  HeadTiles(Call& call, const HeadSpec& spec, int64_t columns, int64_t most_rows)
      : call_(call),
        spec_(spec),
        most_rows_(most_rows),
        columns_(columns),
        vocab_(call.param(0).size(0)),
        in_(call.param(0).size(1)),
        weight_(call.param(0).data<T>()),
        x_(call.host(), most_rows * in_) {
    if constexpr (!std::is_same_v<T, P>) wide_weight_.emplace(call.host(), columns_ * in_);
    rows.resize(static_cast<size_t>(most_rows));
  }

  int64_t in() const { return in_; }
  int64_t vocab() const { return vocab_; }
  int64_t columns() const { return columns_; }
  int64_t num_tiles() const { return (vocab_ + columns_ - 1) / columns_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t row_in_call(int64_t row) const { return chosen_[row]; }
  int32_t label(int64_t row) const { return call_.input(1).template data<int32_t>()[chosen_[row]]; }

  // Calls body() for one block after another; `rows` then has num_rows() fresh elements.
  template <typename Body>
  void for_blocks(const std::vector<int64_t>& chosen, Body&& body) {
    const auto count = static_cast<int64_t>(chosen.size());
    const int64_t step = rows_per_block(count, most_rows_);
    for (int64_t begin = 0; begin < count; begin += step) {
      chosen_ = chosen.data() + begin;
      num_rows_ = std::min(step, count - begin);
      std::fill(rows.begin(), rows.end(), Row());
      const BorrowedTensor x = call_.input(0);
      for_rows(in_, [&](int64_t row) { copy(x.data<T>() + chosen_[row] * in_, x_.data() + row * in_); });
      body();
    }
  }

  template <typename Body>
  void for_tiles(Body&& body) {
    for (int64_t first = 0, index = 0; first < vocab_; first += columns_, ++index) {
      Tile tile{index, first, std::min(columns_, vocab_ - first), nullptr};
      if constexpr (std::is_same_v<T, P>) {
        tile.weight = weight_ + first * in_;
      } else {
        parallel_for(call_.host(), tile.columns, row_grain(in_), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) copy(weight_ + (first + i) * in_, wide_weight_->data() + i * in_);
        });
        tile.weight = wide_weight_->data();
      }
      body(std::as_const(tile));
    }
  }

  template <typename Body>
  void for_rows(int64_t elements, Body&& body) const {
    parallel_for(call_.host(), num_rows_, row_grain(elements), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) body(row);
    });
  }

  // to [rows, columns] = x · weightᵀ
  void logits(const Tile& tile, float* to) const {
    multiply(CHASSIS_GEMM_TRANSPOSE_B, num_rows_, tile.columns, in_, x_.data(), in_, tile.weight, in_, to, 0.0f);
  }
  // dx [rows, in] = g [rows, columns] · weight, added to that of the tiles before.
  void add_input_gradient(const Tile& tile, const P* g, float* dx) const {
    multiply(0, num_rows_, in_, tile.columns, g, tile.columns, tile.weight, in_, dx, tile.first == 0 ? 0.0f : 1.0f);
  }
  // The tile's rows of dweight = beta · dweight + gᵀ · x, in fp32 for any T.
  void add_weight_gradient(const Tile& tile, const P* g, float beta) const {
    float* const dweight = call_.grad_param(0).template data<float>() + tile.first * in_;
    multiply(CHASSIS_GEMM_TRANSPOSE_A, tile.columns, in_, num_rows_, g, tile.columns, x_.data(), in_, dweight, beta);
  }

  // The column of a row's label in a tile, or -1.
  int64_t label_column(const Tile& tile, int64_t row) const {
    const int64_t column = label(row) - tile.first;
    return column >= 0 && column < tile.columns ? column : -1;
  }
  // The derivative of the cap at a capped logit.
  float slope(float logit) const {
    const float t = spec_.softcap > 0.0f ? logit / spec_.softcap : 0.0f;
    return 1.0f - t * t;
  }
  void cap(float* x, int64_t n) const {
    if (spec_.softcap > 0.0f) loops().logits.softcap(x, n, spec_.softcap);
  }

  // Adds a tile of logits to the softmax of the rows. x [rows, columns] becomes exp(logit - largest) · slope, and 0 at
  // labels. If `largest` grows, a row of `sums` [rows, in] is scaled down with it, unless that is NULL. Calls
  // after(row) for each row, on the thread that has it.
  template <typename After>
  void add_to_softmax(const Tile& tile, float* x, float* sums, After&& after) {
    for_rows(tile.columns, [&](int64_t r) {
      Row& row = rows[static_cast<size_t>(r)];
      float* const logits = x + r * tile.columns;
      cap(logits, tile.columns);
      const int64_t label = label_column(tile, r);
      if (label >= 0) row.label_logit = logits[label];
      const float largest = std::max(row.largest, loops().logits.largest(logits, tile.columns));
      if (largest > row.largest) {
        const float factor = std::exp(row.largest - largest);
        row.others *= static_cast<double>(factor);
        if (sums && tile.first > 0) row_loops<float>().scale(sums + r * in_, factor, nullptr, sums + r * in_, in_);
        row.largest = largest;
      }
      constexpr float kFarBelow = 1000.0f;  // its exponential is 0
      if (label >= 0) logits[label] = largest - kFarBelow;
      if (spec_.softcap > 0.0f)
        row.others += static_cast<double>(loops().logits.exp_sum_capped(logits, tile.columns, largest, spec_.softcap));
      else
        row.others += static_cast<double>(loops().logits.exp_sum(logits, tile.columns, largest));
      if (label >= 0) logits[label] = 0.0f;
      after(r);
    });
  }

  // A row of g [rows, columns] = that of x, rounded; nothing if P is float, since products then read x itself.
  void round_row(const Tile& tile, int64_t row, const float* x, HeadMemory<P>* g) const {
    if constexpr (!std::is_same_v<P, float>)
      loops().logits.to_bf16(x + row * tile.columns, g->data() + row * tile.columns, tile.columns);
  }
  // The factor of products: x, or g.
  static const P* factor(const float* x, const HeadMemory<P>* g) {
    if constexpr (std::is_same_v<P, float>)
      return x;
    else
      return g->data();
  }

  // dx [rows, in] = factor · (dx / sum - (1 - p of the label) · slope · the label's weight): the gradient of factor ·
  // (log_sum - logit of the label), if dx is the sum of exp(logit - largest) · slope · weight over the other classes.
  void finish_input_gradient(float* dx, float factor) const {
    for_rows(in_, [&](int64_t r) {
      const Row& row = rows[static_cast<size_t>(r)];
      row_loops<T>().combine(weight_ + label(r) * in_, -factor * row.not_label() * slope(row.label_logit),
                             static_cast<float>(static_cast<double>(factor) / row.sum()), dx + r * in_, in_);
    });
  }

  // Stores rows of dx as those of `to`, which has all rows of the call, or adds them.
  void store_input_gradient(float* dx, T* to, bool adds) const {
    for_rows(in_, [&](int64_t r) {
      float* const from = dx + r * in_;
      T* const row = to + chosen_[r] * in_;
      if (adds) row_loops<T>().add_to_wide(row, from, in_);
      if constexpr (std::is_same_v<T, float>)
        std::copy_n(from, in_, row);
      else
        loops().logits.to_bf16(from, row, in_);
    });
  }

  std::vector<Row> rows;

 private:
  void copy(const T* from, P* to) const {
    if constexpr (std::is_same_v<T, P>)
      std::copy_n(from, in_, to);
    else
      loops().logits.from_bf16(from, 1.0f, to, in_);
  }

  // c [m, n] = a · b + beta · c, with dense c.
  void multiply(uint32_t flags, int64_t m, int64_t n, int64_t k, const P* a, int64_t lda, const P* b, int64_t ldb,
                float* c, float beta) const {
    chassis_gemm_problem_t problem = gemm_problem(kDtypeOf<P>, CHASSIS_DTYPE_F32, m, n, k);
    problem.flags = flags;
    problem.lda = lda, problem.ldb = ldb, problem.ldc = n;
    problem.a = a, problem.b = b, problem.c = c;
    problem.beta = beta;
    gemm(call_.host(), problem);
  }

  Call& call_;
  const HeadSpec& spec_;
  int64_t most_rows_, columns_, vocab_, in_;
  const T* weight_;
  HeadMemory<P> x_;
  std::optional<HeadMemory<P>> wide_weight_;
  const int64_t* chosen_ = nullptr;
  int64_t num_rows_ = 0;
};

// The rows whose label is not ignored and for which counts(row) is true. Throws if a label is no class.
template <typename Counts>
std::vector<int64_t> chosen_rows(const Call& call, const HeadSpec& spec, Counts&& counts) {
  const BorrowedTensor labels = call.input(1);
  const int32_t* const label = labels.data<int32_t>();
  const int64_t vocab = call.param(0).size(0);
  std::vector<int64_t> chosen;
  for (int64_t row = 0; row < labels.num_elements(); ++row) {
    if (label[row] == spec.ignore_index || !counts(row)) continue;
    if (label[row] < 0 || label[row] >= vocab)
      throw Failure(CHASSIS_OUT_OF_RANGE, "label ", label[row], " is outside the vocabulary of ", vocab);
    chosen.push_back(row);
  }
  return chosen;
}
inline std::vector<int64_t> chosen_rows(const Call& call, const HeadSpec& spec) {
  return chosen_rows(call, spec, [](int64_t) { return true; });
}

// The sum of exponentials of all tiles, without gradients. Calls body() after each block.
template <typename T, typename P, typename Body>
void for_softmax(Call& call, HeadTiles<T, P>& tiles, const std::vector<int64_t>& chosen, int64_t most_rows,
                 Body&& body) {
  HeadMemory<float> logits(call.host(), most_rows * tiles.columns());
  tiles.for_blocks(chosen, [&] {
    tiles.for_tiles([&](const auto& tile) {
      tiles.logits(tile, logits.data());
      tiles.add_to_softmax(tile, logits.data(), nullptr, [](int64_t) {});
    });
    body();
  });
}

// As above; adds up the gradient of factor · (log_sum - logit of the label) with respect to x, while the logits exist,
// and stores it in `to`, which has all rows of the call (as in FlashAttention, Dao et al. 2022).
template <typename T, typename P, typename Body>
void for_softmax_with_input_gradient(Call& call, HeadTiles<T, P>& tiles, const std::vector<int64_t>& chosen,
                                     int64_t most_rows, float factor, T* to, bool adds, Body&& body) {
  HeadMemory<float> logits(call.host(), most_rows * tiles.columns()), dx(call.host(), most_rows * tiles.in());
  std::optional<HeadMemory<P>> g;
  if constexpr (!std::is_same_v<P, float>) g.emplace(call.host(), most_rows * tiles.columns());
  tiles.for_blocks(chosen, [&] {
    tiles.for_tiles([&](const auto& tile) {
      tiles.logits(tile, logits.data());
      HeadMemory<P>* const rounded = g ? &*g : nullptr;
      tiles.add_to_softmax(tile, logits.data(), dx.data(),
                           [&](int64_t r) { tiles.round_row(tile, r, logits.data(), rounded); });
      tiles.add_input_gradient(tile, tiles.factor(logits.data(), rounded), dx.data());
    });
    tiles.finish_input_gradient(dx.data(), factor);
    tiles.store_input_gradient(dx.data(), to, adds);
    body();
  });
}

// Calls make.operator()<P>() with the dtype of the factors of products.
template <typename T, typename Make>
decltype(auto) with_factors(const HeadSizes& sizes, Make&& make) {
  if constexpr (std::is_same_v<T, float>) {
    return make.template operator()<float>();
  } else {
    if (sizes.widens) return make.template operator()<float>();
    return make.template operator()<T>();
  }
}

}  // namespace fused
