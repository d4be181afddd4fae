// layer_norm: one pass forward, one backward, two floats saved per row.
#include "kernels.hpp"

namespace fused {
namespace {

// saved(0): mean and 1 / standard deviation of every row, [rows, 2].
template <typename T>
class LayerNorm final : public Kernel {
 public:
  explicit LayerNorm(float eps) : eps_(eps) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), bias = call.param(1);
    const int64_t n = x.size(-1), rows = n ? x.num_elements() / n : 0;
    Tensor saved = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {rows, 2});
    const T *from = x.data<T>(), *weight = call.param(0).data<T>(), *b = bias ? bias.data<T>() : nullptr;
    T* y = call.output(0).data<T>();
    float* moments = saved.data<float>();
    parallel_for(call.host(), rows, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        moments[2 * row + 1] =
            row_loops<T>().layer_norm(from + row * n, weight, b, y + row * n, n, eps_, moments + 2 * row);
    });
    call.save(0, std::move(saved));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const auto dx = grad_input<T>(call, 0, x);
    const int64_t n = x.size(-1), rows = n ? x.num_elements() / n : 0;
    const T *d = dy.data<T>(), *v = x.data<T>(), *weight = call.param(0).data<T>();
    const float* moments = call.saved(0).data<float>();
    parallel_for(call.host(), rows, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * n;
        row_loops<T>().layer_norm_backward(d + at, v + at, weight, dx.carry ? dx.carry + at : nullptr, dx.data + at, n,
                                    moments[2 * row], moments[2 * row + 1]);
      }
    });
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0);
    float *dweight = grad_param(call, 0), *dbias = grad_param(call, 1);
    if (!dy || (!dweight && !dbias)) return;
    const int64_t n = x.size(-1), rows = n ? x.num_elements() / n : 0;
    const T *d = dy.data<T>(), *v = x.data<T>();
    const float* moments = call.saved(0).data<float>();
    parallel_for(call.host(), n, column_grain(rows), [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = row * n + begin;
        if (dweight)
          row_loops<T>().layer_norm_weight(d + at, v + at, dweight + begin, end - begin, moments[2 * row],
                                    moments[2 * row + 1]);
        if (dbias) row_loops<T>().add_to_wide(d + at, dbias + begin, end - begin);
      }
    });
  }

 private:
  float eps_;
};

}  // namespace

std::unique_ptr<Kernel> make_layer_norm(const NodeView& node) {
  return make_for<LayerNorm>(node.input(0).dtype(), static_cast<float>(node.op(0).attr_float("eps")));
}

}  // namespace fused
