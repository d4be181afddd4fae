// Rotary position embedding, in fp32; backward rotates the other way. Dims of a head after the rotated ones are copied.
#include "workspace.hpp"

namespace aten {
namespace {

class Rope : public AtenKernel {
 public:
  Rope(const Operators& aten, const OpView& op)
      : AtenKernel(aten), factor_(op.attr_float("factor", 1.0)), interleaved_(op.attr_int("interleaved", 0) != 0) {
    for (double frequency : op.attr_floats("inv_freq")) inv_freq_.push_back(static_cast<float>(frequency));
    if (!op.has_attr("long_inv_freq")) return;
    for (double frequency : op.attr_floats("long_inv_freq")) long_inv_freq_.push_back(static_cast<float>(frequency));
    long_from_ = op.attr_int("long_from");
  }

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    rotate(call, x, call.make_output(0, x.dtype(), x.sizes()), +1);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    Tensor dx = Tensor::create_like(call.host(), dy);
    rotate(call, dy, dx, -1);
    store_grad_input(call, 0, dy.dtype(), std::move(dx));
  }

 private:
  void rotate(Call& call, const BorrowedTensor& x, const BorrowedTensor& y, int direction) {
    const int64_t rows = x.size(0) * x.size(1), heads = x.size(2), head_dim = x.size(3);
    const Tensor all_x = aten_.view(x, Shape{rows, heads, head_dim}),
                 all_y = aten_.view(y, Shape{rows, heads, head_dim});
    const auto [cosine, sine] = angles(call, wide(x.dtype()), direction);
    const int64_t rotated = 2 * static_cast<int64_t>(inv_freq_.size()), rest = head_dim - rotated;
    for_slabs(rows, heads * head_dim, [&, &cosine = cosine, &sine = sine](int64_t begin, int64_t count) {
      const Tensor x_rows = aten_.narrow(all_x, 0, begin, count), y_rows = aten_.narrow(all_y, 0, begin, count);
      if (rest > 0) aten_.copy_(aten_.narrow(y_rows, -1, rotated, rest), aten_.narrow(x_rows, -1, rotated, rest));
      rotate_rows(call, rest > 0 ? aten_.narrow(x_rows, -1, 0, rotated) : x_rows.retain(),
                  rest > 0 ? aten_.narrow(y_rows, -1, 0, rotated) : y_rows.retain(),
                  aten_.narrow(cosine, 0, begin, count), aten_.narrow(sine, 0, begin, count));
    });
  }

  // (a, b) → (a·cos - b·sin, b·cos + a·sin) for both members of every pair.
  void rotate_rows(Call& call, const Tensor& x, const Tensor& y, const Tensor& cosine, const Tensor& sine) const {
    const uint32_t dtype = wide(x.dtype());
    const Tensor wide_x = cast(x, dtype);
    // y must not share x's memory: ATen writes an element before it has read its partner.
    const Tensor wide_y = y.dtype() == dtype ? y.retain() : create(call, x, dtype, shape_of(x));
    const auto [a, b] = halves(wide_x);
    const auto [rotated_a, rotated_b] = halves(wide_y);
    aten_.mul_out(a, cosine, rotated_a);
    aten_.mul_out(b, cosine, rotated_b);
    aten_.addcmul_(rotated_a, b, sine, -1.0);
    aten_.addcmul_(rotated_b, a, sine);
    if (y.dtype() != dtype) aten_.copy_(y, wide_y);
  }

  // cos and sin of the angles, times factor, [B·T, 1, rotary_dim / 2].
  std::pair<Tensor, Tensor> angles(Call& call, uint32_t dtype, int direction) {
    const BorrowedTensor positions = call.input(1);
    if (!frequencies_ || frequencies_.device_type() != positions.device_type()) {
      frequencies_ = upload(call, positions, inv_freq_);
      if (!long_inv_freq_.empty()) long_frequencies_ = upload(call, positions, long_inv_freq_);
    }
    // The choice is made on the device, so that nothing waits for it.
    const bool may_be_long = long_frequencies_ && positions.num_elements() > 0;
    const Tensor frequencies = may_be_long ? aten_.where(aten_.ge_scalar(aten_.amax(positions, Shape{}), long_from_),
                                                         long_frequencies_, frequencies_)
                                           : frequencies_.retain();
    const Tensor angle = aten_.mul(
        aten_.view(aten_.to_dtype(positions, DtypeArg{CHASSIS_DTYPE_F32}), Shape{positions.num_elements(), 1, 1}),
        frequencies);
    const Tensor exact = cast(angle, dtype);
    Tensor cosine = aten_.cos(exact), sine = aten_.sin(exact);
    if (factor_ != 1.0) aten_.mul_scalar_(cosine, factor_);
    if (factor_ * direction != 1.0) aten_.mul_scalar_(sine, factor_ * direction);
    return {std::move(cosine), std::move(sine)};
  }

  std::pair<Tensor, Tensor> halves(const Tensor& x) const {
    const int64_t half = x.size(-1) / 2;
    if (!interleaved_) return {aten_.narrow(x, -1, 0, half), aten_.narrow(x, -1, half, half)};
    const Tensor pairs = aten_.view(x, Shape{x.size(0), x.size(1), half, 2});
    return {aten_.select(pairs, -1, 0), aten_.select(pairs, -1, 1)};
  }

  Tensor upload(const Call& call, const BorrowedTensor& like, const std::vector<float>& values) const {
    const auto half = static_cast<int64_t>(values.size());
    const Tensor on_host = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {half});
    std::copy(values.begin(), values.end(), on_host.data<float>());
    Tensor uploaded = create(call, like, CHASSIS_DTYPE_F32, Shape{half});
    aten_.copy_(uploaded, on_host);
    return uploaded;
  }

  std::vector<float> inv_freq_, long_inv_freq_;
  int64_t long_from_ = 0;
  double factor_;
  bool interleaved_;
  Tensor frequencies_, long_frequencies_;  // on the device of the calls
};

std::unique_ptr<Kernel> make_rope(const Operators& aten, const NodeView& node) {
  return std::make_unique<Rope>(aten, node.op(0));
}

}  // namespace

std::span<const Entry> rope_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "rope",
       .make = make_rope,
       .keeps_inputs = 0b10,
       .passes = 7,
       .attrs = {"inv_freq", "factor", "interleaved", "rotary_dim", "long_inv_freq", "long_from"},
       .workspace = rope_workspace},
  };
  return kEntries;
}

}  // namespace aten
