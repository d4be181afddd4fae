// Copies and sums between tokens and the rows of experts: a row is read or written once for each of its tokens.
#include <cstring>

#include "kernels.hpp"

namespace grouped {
namespace {

int64_t tokens_of(const BorrowedTensor& experts) { return experts.size(0) * experts.size(1); }

template <typename T>
class Dispatch final : public Kernel {
 public:
  explicit Dispatch(const NodeView& node) : planned_x_(node.input(0), node.input(1)), dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), weights = call.input(2);
    const int64_t k = experts.size(2), width = x.num_elements() / tokens_of(experts);
    const ExpertRows rows = rows_of(experts);
    const T* const from = x.data<T>();
    T* const to = call.output(0).data<T>();
    parallel_for(call.host(), rows.num_rows(), row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* const token = from + rows.pair(r) / k * width;
        if (!weights) {
          std::memcpy(to + r * width, token, static_cast<size_t>(width) * sizeof(T));
          continue;
        }
        row_loops<T>().scale(token, weights.data<float>()[rows.pair(r)], to + r * width, false, width);
      }
    });
    zero_rest(to, rows, experts.num_elements(), width);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1), weights = call.input(2);
    if (!dy) return;
    const int64_t k = experts.size(2), width = dy.num_elements() / experts.num_elements();
    const ExpertRows rows = rows_of(experts);
    const T* const from = dy.data<T>();
    const auto weight = [&](int64_t pair) { return weights ? weights.data<float>()[pair] : 1.0f; };
    if (call.wants_grad_input(0)) {
      const auto dx = grad_input<T>(call, 0, dtype_, planned_x_.in_call(experts));
      parallel_for(call.host(), tokens_of(experts), row_grain(k * width), [&](int64_t begin, int64_t end) {
        std::vector<float> sum(static_cast<size_t>(width));
        for (int64_t t = begin; t < end; ++t) {
          std::fill(sum.begin(), sum.end(), 0.0f);
          for (int64_t p = t * k; p < (t + 1) * k; ++p)
            if (const int64_t r = rows.row(p); r >= 0)
              row_loops<T>().add_scaled(from + r * width, weight(p), sum.data(), width);
          row_loops<T>().scale_wide(sum.data(), 1.0f, dx.data + t * width, dx.adds, width);
        }
      });
    }
    if (!weights || !call.wants_grad_input(2)) return;
    const T* const x = call.input(0).data<T>();
    const auto dw = grad_input<float>(call, 2, CHASSIS_DTYPE_F32, weights.sizes());
    parallel_for(call.host(), experts.num_elements(), row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t r = rows.row(p);
        dw.store(p, r < 0 ? 0 : row_loops<T>().dot(x + p / k * width, from + r * width, width));
      }
    });
  }

 private:
  PlannedSizes planned_x_;
  uint32_t dtype_;
};

template <typename T>
class Combine final : public Kernel {
 public:
  explicit Combine(const NodeView& node) : planned_rows_(node.input(0), node.input(1)), dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), weights = call.input(2);
    const int64_t k = experts.size(2), width = x.num_elements() / experts.num_elements();
    const ExpertRows rows = rows_of(experts);
    const T* const from = x.data<T>();
    T* const to = call.output(0).data<T>();
    parallel_for(call.host(), tokens_of(experts), row_grain(k * width), [&](int64_t begin, int64_t end) {
      std::vector<float> sum(static_cast<size_t>(width));
      for (int64_t t = begin; t < end; ++t) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t p = t * k; p < (t + 1) * k; ++p) {
          const int64_t r = rows.row(p);
          if (r < 0) continue;
          const float w = weights ? weights.data<float>()[p] : 1.0f;
          row_loops<T>().add_scaled(from + r * width, w, sum.data(), width);
        }
        row_loops<T>().scale_wide(sum.data(), 1.0f, to + t * width, false, width);
      }
    });
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1), weights = call.input(2);
    if (!dy) return;
    const int64_t k = experts.size(2), pairs = experts.num_elements(), width = dy.num_elements() / (pairs / k);
    const ExpertRows rows = rows_of(experts);
    const T* const from = dy.data<T>();
    if (call.wants_grad_input(0)) {
      const auto dx = grad_input<T>(call, 0, dtype_, planned_rows_.in_call(experts));
      parallel_for(call.host(), rows.num_rows(), row_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const float w = weights ? weights.data<float>()[rows.pair(r)] : 1.0f;
          row_loops<T>().scale(from + rows.pair(r) / k * width, w, dx.data + r * width, dx.adds, width);
        }
      });
      if (!dx.adds) zero_rest(dx.data, rows, pairs, width);
    }
    if (!weights || !call.wants_grad_input(2)) return;
    const T* const x = call.input(0).data<T>();
    const auto dw = grad_input<float>(call, 2, CHASSIS_DTYPE_F32, weights.sizes());
    parallel_for(call.host(), pairs, row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t r = rows.row(p);
        dw.store(p, r < 0 ? 0 : row_loops<T>().dot(x + r * width, from + p / k * width, width));
      }
    });
  }

 private:
  PlannedSizes planned_rows_;
  uint32_t dtype_;
};

template <typename T>
class GateTokens final : public Kernel {
 public:
  explicit GateTokens(const NodeView&) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), scores = call.input(1);
    const int64_t width = x.num_elements() / scores.num_elements();
    const T* const from = x.data<T>();
    T* const to = call.output(0).data<T>();
    parallel_for(call.host(), scores.num_elements(), row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        row_loops<T>().scale(from + t * width, sigmoid(scores.data<float>()[t]), to + t * width, false, width);
      }
    });
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0), scores = call.input(1);
    if (!dy) return;
    const int64_t width = x.num_elements() / scores.num_elements();
    const T *const from = dy.data<T>(), *const value = x.data<T>();
    GradInput<T> dx;
    GradInput<float> ds;
    if (call.wants_grad_input(0)) dx = grad_input<T>(call, 0, x.dtype(), x.sizes());
    if (call.wants_grad_input(1)) ds = grad_input<float>(call, 1, CHASSIS_DTYPE_F32, scores.sizes());
    parallel_for(call.host(), scores.num_elements(), row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float gate = sigmoid(scores.data<float>()[t]);
        if (ds.data != nullptr) {
          const float sum = row_loops<T>().dot(from + t * width, value + t * width, width);
          ds.store(t, sum * gate * (1 - gate));
        }
        if (dx.data != nullptr) row_loops<T>().scale(from + t * width, gate, dx.data + t * width, dx.adds, width);
      }
    });
  }

 private:
  static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
};

}  // namespace

std::unique_ptr<Kernel> make_dispatch(const NodeView& node) { return make_for<Dispatch>(node.input(0).dtype(), node); }
std::unique_ptr<Kernel> make_combine(const NodeView& node) { return make_for<Combine>(node.input(0).dtype(), node); }
std::unique_ptr<Kernel> make_gate_tokens(const NodeView& node) {
  return make_for<GateTokens>(node.input(0).dtype(), node);
}

}  // namespace grouped
