// rms_norm, alone or after the residual's add: one pass forward, one backward, one float saved per row.
#include "kernels.hpp"

namespace fused {
namespace {

// Inputs x, or a and b of the add; outputs y, or sum and y. saved(0): r, [rows].
template <typename T>
class Norm final : public Kernel {
 public:
  Norm(float eps, float offset, bool with_add) : eps_(eps), offset_(offset), with_add_(with_add) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const int64_t n = x.size(-1), rows = n ? x.num_elements() / n : 0;
    Tensor saved = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {rows});
    const T *a = x.data<T>(), *b = with_add_ ? call.input(1).data<T>() : nullptr, *weight = call.param(0).data<T>();
    T *sum = with_add_ ? call.output(0).data<T>() : nullptr, *y = call.output(with_add_).data<T>();
    float* r = saved.data<float>();
    parallel_for(call.host(), rows, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * n;
        r[row] = with_add_ ? row_loops<T>().add_norm(a + at, b + at, weight, offset_, sum + at, y + at, n, eps_)
                           : row_loops<T>().norm(a + at, weight, offset_, y + at, n, eps_);
      }
    });
    call.save(0, std::move(saved));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(with_add_), x = normalised_input(call);
    const BorrowedTensor dsum = with_add_ ? call.grad_output(0) : BorrowedTensor();
    if (!with_add_) {
      if (dy && call.wants_grad_input(0)) {
        const auto dx = grad_input<T>(call, 0, x);
        backward_rows(call, dy, x, dx.carry, dx.data);
      }
      return;
    }
    if (!dy && !dsum) return;
    // Both summands have the same gradient; it is computed once and returned twice.
    Tensor total = Tensor::create_like(call.host(), x);
    if (dy)
      backward_rows(call, dy, x, dsum ? dsum.data<T>() : nullptr, total.data<T>());
    else
      std::copy_n(dsum.data<T>(), x.num_elements(), total.data<T>());
    for (uint32_t i = 0; i < 2; ++i) {
      if (!call.wants_grad_input(i)) continue;
      if (const BorrowedTensor sum = call.grad_input(i)) {
        const T* add = total.data<T>();
        T* to = sum.data<T>();
        parallel_for(call.host(), x.num_elements(), 16384,
                     [&](int64_t begin, int64_t end) { row_loops<T>().add(add + begin, to + begin, end - begin); });
      } else {
        call.set_grad_input(i, total.retain());
      }
    }
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(with_add_), x = normalised_input(call);
    float* dweight = grad_param(call, 0);
    if (!dweight || !dy) return;
    const int64_t n = x.size(-1), rows = x.num_elements() / n;
    const T *d = dy.data<T>(), *v = x.data<T>();
    const float* r = call.saved(0).data<float>();
    parallel_for(call.host(), n, column_grain(rows), [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < rows; ++row)
        row_loops<T>().norm_weight(d + row * n + begin, v + row * n + begin, dweight + begin, end - begin, r[row]);
    });
  }

 private:
  // The input, or the sum.
  BorrowedTensor normalised_input(Call& call) const { return with_add_ ? call.output(0) : call.input(0); }

  void backward_rows(Call& call, const BorrowedTensor& dy, const BorrowedTensor& x, const T* carry, T* dx) const {
    const int64_t n = x.size(-1), rows = x.num_elements() / n;
    const T *d = dy.data<T>(), *v = x.data<T>();
    const float* r = call.saved(0).data<float>();
    const T* weight = call.param(0).data<T>();
    parallel_for(call.host(), rows, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * n;
        row_loops<T>().norm_backward(d + at, v + at, weight, offset_, carry ? carry + at : nullptr, dx + at, n, r[row]);
      }
    });
  }

  float eps_, offset_;
  bool with_add_;
};

}  // namespace

std::unique_ptr<Kernel> make_norm(const NodeView& node, bool with_add) {
  const OpView norm = node.op(with_add);
  return make_for<Norm>(node.input(0).dtype(), static_cast<float>(norm.attr_float("eps")),
                        static_cast<float>(norm.attr_float("offset", 0)), with_add);
}

}  // namespace fused
