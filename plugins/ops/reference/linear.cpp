// linear: y = x · weightᵀ + bias; score is the same without a bias, and y is not rounded to the dtype of x.
#include "chassis/task.hpp"
#include "values.hpp"

namespace reference {
namespace {

class Linear : public Kernel {
 public:
  explicit Linear(const NodeView& node)
      : planned_x_(node.input(0), node.output(0)),
        planned_y_(node.output(0), node.input(0)),
        x_dtype_(node.input(0).dtype()),
        y_dtype_(node.output(0).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), weight = call.param(0), bias = call.param(1);
    const int64_t out = weight.size(0), in = weight.num_elements() / out, rows = x.num_elements() / in;
    const Values xs = read(x), w = read(weight), b = bias ? read(bias) : Values(static_cast<size_t>(out));
    Values y(static_cast<size_t>(rows * out));
    parallel_for(call.host(), rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t o = 0; o < out; ++o) {
          double sum = b[o];
          for (int64_t i = 0; i < in; ++i) sum += xs[r * in + i] * w[o * in + i];
          y[r * out + o] = sum;
        }
    });
    write_output(call, 0, y_dtype_, planned_y_.in_call(x), y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), weight = call.param(0);
    if (!dy) return;
    const int64_t out = weight.size(0), in = weight.num_elements() / out, rows = dy.num_elements() / out;
    const Values dys = read(dy), w = read(weight);
    Values dx(static_cast<size_t>(rows * in));
    parallel_for(call.host(), rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t o = 0; o < out; ++o)
          for (int64_t i = 0; i < in; ++i) dx[r * in + i] += dys[r * out + o] * w[o * in + i];
    });
    store_grad_input(call, 0, x_dtype_, planned_x_.in_call(dy), dx);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor x = call.input(0), weight = call.param(0);
    const int64_t out = weight.size(0), in = weight.num_elements() / out, rows = x.num_elements() / in;
    const Values xs = read(x), dy = read_grad_output(call, static_cast<size_t>(rows * out));
    if (call.grad_param(0)) {
      Values dweight(static_cast<size_t>(out * in));
      parallel_for(call.host(), out, 1, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o)
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < in; ++i) dweight[o * in + i] += dy[r * out + o] * xs[r * in + i];
      });
      store_grad_param(call, 0, dweight);
    }
    if (call.grad_param(1)) {
      Values dbias(static_cast<size_t>(out));
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t o = 0; o < out; ++o) dbias[o] += dy[r * out + o];
      store_grad_param(call, 1, dbias);
    }
  }

 private:
  PlannedSizes planned_x_, planned_y_;
  uint32_t x_dtype_, y_dtype_;
};

std::unique_ptr<Kernel> make_linear(const NodeView& node) { return std::make_unique<Linear>(node); }

}  // namespace

std::span<const Entry> linear_entries() {
  static constexpr Entry kEntries[] = {
      {"linear", make_linear, 1, {}},
      {"score", make_linear, 1, {}},
  };
  return kEntries;
}

}  // namespace reference
