// silu(gate) · up or gelu_tanh(gate) · up (Shazeer 2020) in one pass; backward recomputes the sigmoid, so nothing is
// saved.
#include "kernels.hpp"

namespace fused {
namespace {

template <typename T>
class GatedActivation final : public Kernel {
 public:
  explicit GatedActivation(bool gelu)
      : forward_(gelu ? row_loops<T>().gelu_tanh_mul : row_loops<T>().silu_mul),
        backward_(gelu ? row_loops<T>().gelu_tanh_mul_backward : row_loops<T>().silu_mul_backward) {}

  void forward(Call& call) override {
    const T *gate = call.input(0).data<T>(), *up = call.input(1).data<T>();
    T* y = call.output(0).data<T>();
    parallel_for(call.host(), call.input(0).num_elements(), 16384,
                 [&](int64_t begin, int64_t end) { forward_(gate + begin, up + begin, y + begin, end - begin); });
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), gate = call.input(0), up = call.input(1);
    if (!dy) return;
    Tensor dgate = Tensor::create_like(call.host(), gate), dup = Tensor::create_like(call.host(), up);
    const T *d = dy.data<T>(), *g = gate.data<T>(), *u = up.data<T>();
    T *to_gate = dgate.data<T>(), *to_up = dup.data<T>();
    parallel_for(call.host(), gate.num_elements(), 16384, [&](int64_t begin, int64_t end) {
      backward_(d + begin, g + begin, u + begin, to_gate + begin, to_up + begin, end - begin);
    });
    if (call.wants_grad_input(0)) call.set_grad_input(0, std::move(dgate));
    if (call.wants_grad_input(1)) call.set_grad_input(1, std::move(dup));
  }

 private:
  decltype(RowLoops<T>::silu_mul) forward_;
  decltype(RowLoops<T>::silu_mul_backward) backward_;
};

}  // namespace

std::unique_ptr<Kernel> make_gated_activation(const NodeView& node) {
  return make_for<GatedActivation>(node.input(0).dtype(), node.op(0).attr_string("function") == "gelu_tanh");
}

}  // namespace fused
