// Rotary position embedding: rotates every pair of a head's first rotary_dim dims by position · inv_freq; backward
// rotates back.
#include <algorithm>
#include <cmath>

#include "values.hpp"

namespace reference {
namespace {

class Rope : public Kernel {
 public:
  explicit Rope(const OpView& op)
      : inv_freq_(list(op, "inv_freq")),
        long_inv_freq_(list(op, "long_inv_freq")),
        long_from_(op.attr_int("long_from", 0)),
        factor_(op.attr_float("factor", 1.0)),
        interleaved_(op.attr_int("interleaved", 0) != 0) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    Values y = read(x);
    rotate(y, x.sizes(), call.input(1), +1);
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    Values dx = read(dy);
    rotate(dx, dy.sizes(), call.input(1), -1);
    store_grad_input(call, 0, dy.dtype(), dy.sizes(), dx);
  }

 private:
  static std::vector<double> list(const OpView& op, std::string_view name) {
    if (!op.has_attr(name)) return {};
    return {op.attr_floats(name).begin(), op.attr_floats(name).end()};
  }

  void rotate(Values& x, std::span<const int64_t> sizes, const BorrowedTensor& positions, int direction) const {
    const int64_t rows = sizes[0] * sizes[1], heads = sizes[2], head_dim = sizes[3];
    const auto half = static_cast<int64_t>(inv_freq_.size());
    int64_t last = -1;
    for (int64_t r = 0; r < rows; ++r) last = std::max<int64_t>(last, positions.data<int32_t>()[r]);
    const auto& inv_freq = !long_inv_freq_.empty() && last >= long_from_ ? long_inv_freq_ : inv_freq_;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < half; ++i) {
        // The angle is computed in fp32, as in transformers, with which checkpoints were trained.
        const double angle = static_cast<float>(positions.data<int32_t>()[r]) * static_cast<float>(inv_freq[i]);
        const double cosine = std::cos(angle) * factor_, sine = std::sin(angle) * factor_ * direction;
        for (int64_t h = 0; h < heads; ++h) {
          double* head = &x[(r * heads + h) * head_dim];
          double& a = head[interleaved_ ? 2 * i : i];
          double& b = head[interleaved_ ? 2 * i + 1 : i + half];
          const double rotated = a * cosine - b * sine;
          b = b * cosine + a * sine;
          a = rotated;
        }
      }
  }

  std::vector<double> inv_freq_, long_inv_freq_;
  int64_t long_from_;
  double factor_;
  bool interleaved_;
};

std::unique_ptr<Kernel> make_rope(const NodeView& node) { return std::make_unique<Rope>(node.op(0)); }

}  // namespace

std::span<const Entry> rope_entries() {
  static constexpr Entry kEntries[] = {
      {"rope", make_rope, 2, {"inv_freq", "factor", "interleaved", "rotary_dim", "long_inv_freq", "long_from"}},
  };
  return kEntries;
}

}  // namespace reference
