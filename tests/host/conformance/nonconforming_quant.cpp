// 8 bits with one scale for every 16 elements, with one fault, which the environment variable NONCONFORMING selects and
// `plugins check` must find. Correct if the variable is not set.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "chassis/plugin.hpp"
#include "chassis/quant.hpp"

namespace {

using namespace chassis;

constexpr int64_t kBlock = 16;
constexpr std::string_view kScheme = "nonconforming/int8";

bool has(std::string_view fault) {
  const char* chosen = std::getenv("NONCONFORMING");
  return chosen != nullptr && fault == chosen;
}

class Product final : public Kernel {
 public:
  Product(const Host& host, const NodeView& node)
      : host_(host),
        outputs_(node.param(0).size(0)),
        inputs_(node.param(0).size(1)),
        x_sizes_(node.input(0).local_shape().begin(), node.input(0).local_shape().end()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), bias = call.param(1);
    static int num_calls = 0;  // calls of all kernels
    ++num_calls;
    const bool gives_other_bits = has("other bits"), adds_bias = bias && !has("no bias");
    const auto* const xs = x.data<float>();
    auto* const ys = call.output(0).data<float>();
    each(call, x.num_elements() / inputs_, [&](int64_t row, int64_t out, int64_t in, float weight, bool is_first) {
      float& y = ys[row * outputs_ + out];
      if (is_first) y = adds_bias ? bias.data<float>()[out] : 0.0f;
      if (gives_other_bits && num_calls % 2 == 0) weight *= 1.0f + 1e-6f;
      y += xs[row * inputs_ + in] * weight;
    });
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    x_sizes_[0] = dy.size(0), x_sizes_[1] = dy.size(1);
    if (!call.grad_input(0)) {
      call.set_grad_input(0, Tensor::create(host_, CHASSIS_DTYPE_F32, x_sizes_));
      std::fill_n(call.grad_input(0).data<float>(), call.grad_input(0).num_elements(), 0.0f);
    } else if (has("does not add")) {
      std::fill_n(call.grad_input(0).data<float>(), call.grad_input(0).num_elements(), 0.0f);
    }
    auto* const dx = call.grad_input(0).data<float>();
    const auto* const dys = dy.data<float>();
    const bool is_half = has("half a gradient");
    each(call, dy.num_elements() / outputs_, [&](int64_t row, int64_t out, int64_t in, float weight, bool) {
      if (is_half && out % 2 == 1) return;
      dx[row * inputs_ + in] += dys[row * outputs_ + out] * weight;
    });
  }
  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), dbias = call.grad_param(1);
    if (!dbias) return;
    auto* const sums = dbias.data<float>();
    if (call.grad_param_beta(1) == 0.0f || has("forgets the bias")) std::fill_n(sums, outputs_, 0.0f);
    for (int64_t i = 0; dy && i < dy.num_elements(); ++i) sums[i % outputs_] += dy.data<float>()[i];
  }

 private:
  template <typename Body>
  void each(const Call& call, int64_t num_rows, Body&& body) const {
    const auto* const codes = call.component(0, 0).data<int8_t>();
    const auto* const scales = call.component(0, 1).data<float>();
    const int64_t last = (outputs_ * inputs_ + kBlock - 1) / kBlock - 1;
    for (int64_t row = 0; row < num_rows; ++row)
      for (int64_t out = 0; out < outputs_; ++out)
        for (int64_t in = 0; in < inputs_; ++in) {
          const int64_t at = out * inputs_ + in;
          const int64_t block =
              has("rows in blocks of their own") ? out * ((inputs_ + kBlock - 1) / kBlock) + in / kBlock : at / kBlock;
          body(row, out, in, static_cast<float>(codes[at]) * scales[std::min(block, last)], in == 0);
        }
  }

  const Host& host_;
  const int64_t outputs_, inputs_;
  std::vector<int64_t> x_sizes_;
};

class Int8 final : public Quant {
 public:
  static constexpr std::string_view kId = "nonconforming_quant";
  static constexpr std::string_view kDoc = "test: weights in 8 bits, with a fault";
  static constexpr std::string_view kPatterns[] = {"linear"};
  using Quant::Quant;

  bool configure(std::string_view config) override {
    if (!config.empty() && has("refuses its config")) fail_invalid("not this one");
    return has("finds components") || (!config.empty() && !has("forgets its files"));
  }
  std::string config() const override { return has("no config") ? "[8]" : "{\"quant_method\":\"int8\"}"; }
  const QuantStorage* storage(const QuantParameter& p) override {
    if (has("does not finish")) return &unfinished_;
    return p.is_linear_weight() && !has("stores nothing") ? &storage_ : nullptr;
  }
  void encode(const QuantPart& part) const override {
    const bool accepts_nan = has("accepts NaN"), keeps_range = has("first range"), keeps_order = has("in one order"),
               adds_bits = has("adds bits");
    const int sign = has("stores zeros") ? 0 : has("another sign") ? -1 : 1;
    const float least = has("depends on cuts") && part.count() < part.num_elements() ? 1.0f : 0.0f;
    const auto* const values = static_cast<const float*>(part.values());
    auto* const codes = part.component<int8_t>(0);
    auto* const scales = part.component<float>(1);
    if (has("writes beyond") && part.begin() + part.count() == part.num_elements()) codes[part.count()] = 1;
    if (has("writes far beyond")) codes[part.count() + (int64_t{1} << 40)] = 1;
    for (int64_t begin = 0; begin < part.count(); begin += kBlock) {
      const int64_t end = std::min(part.count(), begin + kBlock);
      float largest = least;
      for (int64_t i = begin; i < end; ++i) {
        if (!std::isfinite(values[i]) && !accepts_nan) fail_invalid("element ", part.begin() + i, " is infinite");
        largest = std::max(largest, std::abs(values[i]));
      }
      if (keeps_range) largest = range_ = std::max(range_, largest);
      if (keeps_order) largest = last_ = part.begin() + begin == 0 ? largest : std::max(last_, largest);
      const float scale = scales[begin / kBlock] = largest / 127.0f;
      for (int64_t i = begin; i < end; ++i) {
        const bool has_code = scale > 0.0f && std::isfinite(values[i]);
        const auto code = static_cast<int8_t>(sign * (has_code ? std::lround(values[i] / scale) : 0));
        codes[i] = adds_bits ? static_cast<int8_t>(codes[i] | code) : code;
      }
    }
  }
  void decode(const QuantPart& part) const override {
    auto* const values = static_cast<float*>(part.values());
    const auto* const codes = part.component<int8_t>(0);
    const auto* const scales = part.component<float>(1);
    for (int64_t i = 0; i < part.count(); ++i) values[i] = static_cast<float>(codes[i]) * scales[i / kBlock];
  }
  void verify(const QuantPart& part) const override {
    if (has("refuses its own")) throw Failure(CHASSIS_DATA_LOSS, "this cannot be");
    const int64_t num_scales = has("accepts NaN scales") ? 0 : (part.count() + kBlock - 1) / kBlock;
    for (int64_t i = 0; i < num_scales; ++i)
      if (!std::isfinite(part.component<float>(1)[i]))
        throw Failure(CHASSIS_DATA_LOSS, ".scale[", i, "] is not finite");
  }

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"storage"});
    if (!node.op(0).has_attr("storage") || node.output(0).dtype() != CHASSIS_DTYPE_F32 || has("computes nothing"))
      refuse("not this one");
    if (!has("") && node.input(0).size(1) > 100) refuse("this takes long");
    return 0;
  }
  void infer(const NodeView&, Infer& out) override {
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return std::make_unique<Product>(host(), node);
  }

 private:
  mutable float range_ = 0, last_ = 0;  // used by some faults
  const QuantStorage storage_{
      std::string(kScheme), "", {{"", CHASSIS_DTYPE_I8, 1}, {".scale", CHASSIS_DTYPE_F32, kBlock}}};
  const QuantStorage unfinished_{
      std::string(kScheme), "", {{"", CHASSIS_DTYPE_I8, 1}, {".map", CHASSIS_DTYPE_F32, 0, 1, 16}}};
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nlicense=Apache-2.0\n", Int8)
