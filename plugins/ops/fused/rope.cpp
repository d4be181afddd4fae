// Rotary position embedding, rotate-half: angles come from a table by position; backward rotates the other way. Dims of
// a head after the rotated ones are copied.
#include <cmath>

#include "kernels.hpp"

namespace fused {

AngleTable::AngleTable(std::vector<double> inv_freq, double factor)
    : inv_freq_(std::move(inv_freq)), factor_(factor), half_(static_cast<int64_t>(inv_freq_.size())) {}

bool AngleTable::matches(std::span<const double> inv_freq, double factor) const {
  return factor == factor_ && std::equal(inv_freq.begin(), inv_freq.end(), inv_freq_.begin(), inv_freq_.end());
}

void AngleTable::grow(int64_t count) {
  const int64_t old_count = half_ ? static_cast<int64_t>(cosine_.size()) / half_ : count;
  if (count <= old_count) return;
  const int64_t target = std::max(count, 2 * old_count);
  cosine_.resize(static_cast<size_t>(target * half_));
  sine_.resize(static_cast<size_t>(target * half_));
  for (int64_t p = old_count; p < target; ++p)
    for (int64_t i = 0; i < half_; ++i) {
      // The angle is rounded to fp32, as in the reference implementation.
      const double angle = static_cast<float>(p) * static_cast<float>(inv_freq_[static_cast<size_t>(i)]);
      cosine_[static_cast<size_t>(p * half_ + i)] = static_cast<float>(std::cos(angle) * factor_);
      sine_[static_cast<size_t>(p * half_ + i)] = static_cast<float>(std::sin(angle) * factor_);
    }
}

std::shared_ptr<AngleTable> Shared::angles(std::span<const double> inv_freq, double factor) {
  for (const auto& table : tables)
    if (table->matches(inv_freq, factor)) return table;
  return tables.emplace_back(
      std::make_shared<AngleTable>(std::vector<double>(inv_freq.begin(), inv_freq.end()), factor));
}

namespace {

template <typename T>
class Rope final : public Kernel {
 public:
  // `long_angles` may be NULL.
  Rope(std::shared_ptr<AngleTable> angles, std::shared_ptr<AngleTable> long_angles, int64_t long_from, int64_t half)
      : angles_(std::move(angles)), long_angles_(std::move(long_angles)), long_from_(long_from), half_(half) {}

  void forward(Call& call) override { rotate(call, call.input(0), call.output(0).template data<T>(), 1.0f); }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    Tensor dx = Tensor::create_like(call.host(), dy);
    rotate(call, dy, dx.data<T>(), -1.0f);
    call.set_grad_input(0, std::move(dx));
  }

 private:
  void rotate(Call& call, const BorrowedTensor& x, T* y, float direction) {
    const BorrowedTensor positions = call.input(1);
    const int32_t* position = positions.data<int32_t>();
    const int64_t tokens = positions.num_elements(), heads = x.size(2), dim = x.size(3);
    int32_t last = -1;
    for (int64_t i = 0; i < tokens; ++i) {
      if (position[i] < 0) throw Failure(CHASSIS_INVALID_ARGUMENT, "position ", position[i], " is below 0");
      last = std::max(last, position[i]);
    }
    AngleTable& angles = long_angles_ && last >= long_from_ ? *long_angles_ : *angles_;
    angles.grow(last + 1);
    const T* from = x.data<T>();
    parallel_for(call.host(), tokens, row_grain(heads * dim), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        const float *cosine = angles.cosine(position[token]), *sine = angles.sine(position[token]);
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t at = (token * heads + head) * dim;
          row_loops<T>().rotate(from + at, cosine, sine, y + at, half_, direction);
          if (y != from) std::copy(from + at + 2 * half_, from + at + dim, y + at + 2 * half_);
        }
      }
    });
  }

  std::shared_ptr<AngleTable> angles_, long_angles_;
  int64_t long_from_, half_;
};

}  // namespace

std::unique_ptr<Kernel> make_rope(Shared& shared, const NodeView& node) {
  const OpView op = node.op(0);
  const double factor = op.attr_float("factor", 1.0);
  const std::span<const double> inv_freq = op.attr_floats("inv_freq");
  std::shared_ptr<AngleTable> long_angles;
  if (op.has_attr("long_inv_freq")) long_angles = shared.angles(op.attr_floats("long_inv_freq"), factor);
  return make_for<Rope>(node.input(0).dtype(), shared.angles(inv_freq, factor), std::move(long_angles),
                        op.attr_int("long_from", 0), static_cast<int64_t>(inv_freq.size()));
}

}  // namespace fused
