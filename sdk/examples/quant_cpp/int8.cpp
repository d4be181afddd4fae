// Weights of linears in 8 bits, with one scale for each output row: weight = code · scale. Computes in fp32.
#include <algorithm>
#include <cmath>
#include <map>

#include "chassis/gemm.hpp"
#include "chassis/plugin.hpp"
#include "chassis/quant.hpp"

namespace {
using namespace chassis;

constexpr std::string_view kScheme = "int8/row", kConfig = R"({"quant_method":"quant_cpp"})";
enum : uint32_t { kCodes, kScales };  // components
constexpr int64_t kPanelRows = 64;    // rows of a weight that are decoded at once

// y = x · Wᵀ + bias. Saves nothing for backward, which decodes the weight again.
class Product final : public Kernel {
 public:
  Product(const Host& host, const NodeView& node)
      : host_(host),
        outputs_(node.param(0).size(0)),
        inputs_(node.param(0).size(1)),
        x_sizes_(node.input(0).local_shape().begin(), node.input(0).local_shape().end()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), bias = call.param(1);
    const int64_t num_rows = x.num_elements() / inputs_;
    auto* const y = call.output(0).data<float>();
    for (int64_t r = 0; bias && r < num_rows; ++r) std::copy_n(bias.data<float>(), outputs_, y + r * outputs_);
    each_panel(call, [&](int64_t begin, int64_t size, chassis_gemm_problem_t& p) {
      p.flags = CHASSIS_GEMM_TRANSPOSE_B, p.m = num_rows, p.n = size, p.k = inputs_;
      p.a = x.data<float>(), p.lda = inputs_, p.c = y + begin, p.ldc = outputs_;
      p.beta = bias ? 1.0f : 0.0f;
    });
  }

  // dx = dy · W, a sum over panels.
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    x_sizes_[0] = dy.size(0), x_sizes_[1] = dy.size(1);  // of this call
    Tensor dx = Tensor::create(host_, CHASSIS_DTYPE_F32, x_sizes_);
    each_panel(call, [&](int64_t begin, int64_t size, chassis_gemm_problem_t& p) {
      p.m = dy.num_elements() / outputs_, p.n = inputs_, p.k = size;
      p.a = dy.data<float>() + begin, p.lda = outputs_, p.c = dx.data<float>(), p.ldc = inputs_;
      p.beta = begin > 0 ? 1.0f : 0.0f;
    });
    call.set_grad_input(0, std::move(dx));
  }

 private:
  // Decodes panels of the weight, and runs for each the product that complete(first row, rows, problem) makes of it.
  template <typename Complete>
  void each_panel(const Call& call, Complete&& complete) const {
    const auto* const codes = call.component(0, kCodes).data<int8_t>();
    const auto* const scales = call.component(0, kScales).data<float>();
    auto* const panel = static_cast<float*>(call.workspace());
    for (int64_t begin = 0; begin < outputs_; begin += kPanelRows) {
      const int64_t size = std::min(kPanelRows, outputs_ - begin), first = begin * inputs_;
      for (int64_t i = 0; i < size * inputs_; ++i)
        panel[i] = static_cast<float>(codes[first + i]) * scales[begin + i / inputs_];
      chassis_gemm_problem_t problem = gemm_problem(CHASSIS_DTYPE_F32);
      problem.b = panel, problem.ldb = inputs_;
      complete(begin, size, problem);
      gemm(host_, problem);
    }
  }

  const Host& host_;
  const int64_t outputs_, inputs_;
  std::vector<int64_t> x_sizes_;
};

class Int8 final : public Quant {
 public:
  static constexpr std::string_view kId = "quant_cpp";
  static constexpr std::string_view kDoc = "weights of linears in 8 bits, with one scale for each row";
  static constexpr std::string_view kPatterns[] = {"linear"};
  using Quant::Quant;

  bool configure(std::string_view text) override {
    if (!text.empty() && text != kConfig) fail_invalid("quantization_config is ", text, ", expected ", kConfig);
    return !text.empty();
  }
  std::string config() const override { return std::string(kConfig); }

  // A unit of the scales is a row of the weight, so the weight is cut between rows.
  const QuantStorage* storage(const QuantParameter& p) override {
    if (!p.is_linear_weight() || p.is_added || p.role == CHASSIS_ROLE_HEAD) return nullptr;
    if (p.num_tied > 0 || p.num_readers != 1) return nullptr;
    const std::vector<QuantComponent> parts = {{"", CHASSIS_DTYPE_I8, 1}, {".scale", CHASSIS_DTYPE_F32, p.sizes[1]}};
    return &by_columns_.try_emplace(p.sizes[1], std::string(kScheme), "", parts).first->second;
  }

  void encode(const QuantPart& part) const override {
    each_row(part, [](int64_t row, int64_t columns, const float* values, int8_t* codes, float& scale) {
      float largest = 0.0f;
      for (int64_t i = 0; i < columns; ++i) {
        if (!std::isfinite(values[i])) fail_invalid("element ", row * columns + i, " is ", values[i]);
        largest = std::max(largest, std::abs(values[i]));
      }
      scale = std::max(largest / 127.0f, 1e-30f);
      for (int64_t i = 0; i < columns; ++i)
        codes[i] = static_cast<int8_t>(std::clamp(std::nearbyint(values[i] / scale), -127.0f, 127.0f));
    });
  }
  void decode(const QuantPart& part) const override {
    each_row(part, [](int64_t, int64_t columns, float* values, const int8_t* codes, float scale) {
      for (int64_t i = 0; i < columns; ++i) values[i] = static_cast<float>(codes[i]) * scale;
    });
  }
  void verify(const QuantPart& part) const override {
    for (int64_t i = 0; i < part.count() / part.sizes()[1]; ++i)
      if (const float scale = part.component<float>(kScales)[i]; !(std::isfinite(scale) && scale >= 0.0f))
        throw Failure(CHASSIS_DATA_LOSS, ".scale[", part.begin() / part.sizes()[1] + i, "] is ", scale);
  }

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"storage"});
    if (!node.op(0).has_attr("storage") || node.op(0).attr_string("storage") != kScheme) refuse("not in ", kScheme);
    if (node.device_type() != CHASSIS_DEVICE_CPU || node.output(0).dtype() != CHASSIS_DTYPE_F32)
      refuse("computes on the CPU, with precision.compute = \"fp32\"");
    if (node.has_param(1) && node.param(1).needs_grad()) refuse("has no gradient of a bias");
    return 0;
  }
  void infer(const NodeView& node, Infer& out) override {
    const auto bytes = static_cast<uint64_t>(kPanelRows * node.param(0).size(1)) * sizeof(float);
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_HOST_WORKSPACE);
    out.workspace(bytes, bytes);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView& n) override { return std::make_unique<Product>(host(), n); }

 private:
  // Calls body(row, columns, values, codes, scale).
  template <typename Body>
  static void each_row(const QuantPart& part, Body&& body) {
    if (part.value_dtype() != CHASSIS_DTYPE_F32) throw Failure(CHASSIS_UNIMPLEMENTED, "converts fp32");
    const int64_t columns = part.sizes()[1], first = part.begin() / columns;
    for (int64_t i = 0; i < part.count() / columns; ++i)
      body(first + i, columns, static_cast<float*>(part.values()) + i * columns,
           part.component<int8_t>(kCodes) + i * columns, part.component<float>(kScales)[i]);
  }

  std::map<int64_t, QuantStorage> by_columns_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.gemm/1\nrequires=chassis.tensor/1\nlicense=Apache-2.0\n", Int8)
