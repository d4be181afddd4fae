// A model with ops of its own, their kernels, and an optimizer that sums over all parameters, for tests: whatever
// divides the computation or the parameters must not change their numbers.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chassis/bf16.hpp"
#include "chassis/model.hpp"
#include "chassis/ops.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;
using Json = nlohmann::ordered_json;

// A small Llama. `ops` of its config lists the own ops that it has, `declares` says whether they declare their dims.
class OwnOpsModel final : public Model {
 public:
  static constexpr std::string_view kId = "own_ops";
  static constexpr std::string_view kDoc = "a model with ops of its own, for tests";
  using Model::Model;

  void configure(std::string_view config_json) override {
    config_ = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
    if (!config_.is_object()) fail_invalid("config.json is not a JSON object");
    if (config_.value("hidden_size", 32) < 1) fail_invalid("hidden_size is below 1");
    for (const auto& op : config_.value("ops", Json::array())) ops_.push_back(op.get<std::string>());
    declares_ = config_.value("declares", true);
    lies_ = config_.value("lies", false);
  }

  void record(Builder& b) override {
    b.init_std = 0.1;
    const auto size = [&](const char* key, int64_t fallback) { return config_.value(key, fallback); };
    const Dim vocab = b.dim("vocab", size("vocab_size", 96)), hidden = b.dim("hidden", 32), ffn = b.dim("ffn", 64);
    const Dim heads = b.dim("heads", 4), kv_heads = b.dim("kv_heads", size("num_key_value_heads", 2));
    const Dim head_dim = b.dim("head_dim", 8);
    b.chain("embed", "model", b.block("embed", [&] {
      b.output("hidden", b.embedding(b.field("input_ids"), "embed_tokens.weight", vocab, {hidden}));
    }));
    const auto layer = [&] {
      const Value x = b.input("hidden", {hidden});
      const Value n = b.rms_norm(x, "norm.weight", 1e-5);
      const Value q = b.linear(n, "q_proj", {heads, head_dim}), v = b.linear(n, "v_proj", {kv_heads, head_dim});
      Value k = b.linear(n, "k_proj", {kv_heads, head_dim});
      if (has("center_keys")) k = own(b, "center", {k}, k.dims, {head_dim});
      Value y = b.attention(q, k, v, {.causal = true, .document_ids = b.field("document_ids")}, 0.35);
      y = b.add(x, b.linear(y, "o_proj", {hidden}));
      if (has("shift")) y = b.add(y, own(b, "shift", {y}, y.dims, {kTime}));
      if (has("place")) y = own(b, "place", {y, b.field("positions")}, y.dims, {});
      Value u = own(b, "relu2", {b.linear(y, "up_proj", {ffn})}, {kBatch, kTime, ffn}, {});
      if (has("center")) u = own(b, "center", {u}, u.dims, {ffn});
      if (has("gain")) {
        const Slot gain = b.slot({"gain.weight", {{ffn}}, CHASSIS_ROLE_NORM, CHASSIS_INIT_NORMAL, 0.1});
        u = own(b, "gain", {u}, u.dims, {}, {gain});
      }
      b.output("hidden", b.add(y, b.linear(u, "down_proj", {hidden})));
    };
    b.chain("layers", "model.layers.{i}", b.block("layer", layer), 2);
    b.chain("head", "", b.block("head", [&] {
      Value x = b.input("hidden", {hidden});
      if (has("shift_in_head")) x = b.add(x, own(b, "shift", {x}, x.dims, {kTime}));
      const Value logits = b.linear(x, "lm_head", {vocab}, {.role = CHASSIS_ROLE_HEAD});
      b.output("hidden", x);
      b.output("logits", logits);
      const auto squares = [&](const std::string& name, uint32_t dtype) {
        return own(b, name, {logits, b.field("labels")}, {}, {vocab}, {}, dtype);
      };
      if (has("z_loss")) b.output("aux_loss", squares("z_loss", CHASSIS_DTYPE_F32));
      if (has("scaled_z")) b.output("aux_loss", b.scale(squares("z_squares", CHASSIS_DTYPE_F32), 1e-3));
      if (has("narrow_z")) b.output("aux_loss", squares("z_loss", 0));
    }));
  }

  std::string config() const override { return config_.dump(2) + "\n"; }

 private:
  bool has(const char* op) const { return std::ranges::find(ops_, op) != ops_.end(); }
  Value own(Builder& b, const std::string& name, const std::vector<Value>& inputs, const Dims& dims,
            const Dims& mixed_dims, const std::vector<Slot>& params = {}, uint32_t dtype = 0) const {
    OwnOp declared{.mixed_dims = mixed_dims, .output_dtype = dtype};
    if (!declares_) declared.mixed_dims.reset();
    if (lies_ && name != "z_loss") declared.mixed_dims.emplace();
    return b.own_op("trial/" + name, name, inputs, {}, dims, declared, params);
  }

  Json config_ = nullptr;
  std::vector<std::string> ops_;
  bool declares_ = true, lies_ = false;  // lies: no op but the loss mixes a dim
};

// [outer, middle, inner] of a tensor [B, T, …].
struct Rows {
  int64_t B, T, n;
  explicit Rows(const BorrowedTensor& x)
      : B(x.size(0)), T(x.size(1)), n(x.num_elements() / std::max<int64_t>(1, B * T)) {}
};

class Center final : public Kernel {  // y = x + 3 · mean over the last dim
 public:
  explicit Center(const Host& host) : host_(host) {}
  void forward(Call& c) override { run(c.input(0), c.output(0).data<float>()); }
  void backward_inputs(Call& c) override {
    const auto dy = c.grad_output(0);
    if (!dy) return;
    Tensor dx = Tensor::create_like(host_, dy);
    run(dy, dx.data<float>());
    c.set_grad_input(0, std::move(dx));
  }

 private:
  static void run(const BorrowedTensor& x, float* y) {
    const int64_t n = x.size(-1);
    for (int64_t row = 0; row < x.num_elements() / n; ++row) {
      const float* const from = x.data<float>() + row * n;
      double mean = 0;
      for (int64_t i = 0; i < n; ++i) mean += from[i];
      for (int64_t i = 0; i < n; ++i) y[row * n + i] = from[i] + static_cast<float>(3 * mean / static_cast<double>(n));
    }
  }
  const Host& host_;
};

class TimeShift final : public Kernel {  // y[t] = x[t - 1]
 public:
  explicit TimeShift(const Host& host) : host_(host) {}
  void forward(Call& c) override { run(c.input(0), c.output(0).data<float>(), -1); }
  void backward_inputs(Call& c) override {
    const auto dy = c.grad_output(0);
    if (!dy) return;
    Tensor dx = Tensor::create_like(host_, dy);
    run(dy, dx.data<float>(), 1);
    c.set_grad_input(0, std::move(dx));
  }

 private:
  static void run(const BorrowedTensor& x, float* y, int64_t step) {
    const Rows r(x);
    for (int64_t b = 0; b < r.B; ++b)
      for (int64_t t = 0; t < r.T; ++t)
        for (int64_t i = 0; i < r.n; ++i)
          y[(b * r.T + t) * r.n + i] =
              t + step < 0 || t + step >= r.T ? 0.0f : x.data<float>()[(b * r.T + t + step) * r.n + i];
  }
  const Host& host_;
};

class Relu2 final : public Kernel {
 public:
  explicit Relu2(const Host& host) : host_(host) {}
  void forward(Call& c) override {
    const auto x = c.input(0);
    each(
        x, c.output(0), [](float v, float) { return v > 0 ? v * v : 0; }, x);
  }
  void backward_inputs(Call& c) override {
    const auto dy = c.grad_output(0);
    if (!dy) return;
    Tensor dx = Tensor::create_like(host_, dy);
    each(
        c.input(0), dx, [](float v, float g) { return v > 0 ? 2 * v * g : 0; }, dy);
    c.set_grad_input(0, std::move(dx));
  }

 private:
  template <typename F>
  static void each(const BorrowedTensor& x, const BorrowedTensor& out, F&& f, const BorrowedTensor& other) {
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      if (x.dtype() == CHASSIS_DTYPE_BF16)
        out.data<uint16_t>()[i] = to_bf16(f(from_bf16(x.data<uint16_t>()[i]), from_bf16(other.data<uint16_t>()[i])));
      else
        out.data<float>()[i] = f(x.data<float>()[i], other.data<float>()[i]);
    }
  }
  const Host& host_;
};

class Gain final : public Kernel {  // y = x · (1 + weight)
 public:
  explicit Gain(const Host& host) : host_(host) {}
  void forward(Call& c) override { run(c.input(0), c.param(0), c.output(0).data<float>()); }
  void backward_inputs(Call& c) override {
    const auto dy = c.grad_output(0);
    if (!dy || !c.wants_grad_input(0)) return;
    Tensor dx = Tensor::create_like(host_, dy);
    run(dy, c.param(0), dx.data<float>());
    c.set_grad_input(0, std::move(dx));
  }
  void backward_params(Call& c) override {
    const auto dw = c.grad_param(0), x = c.input(0), dy = c.grad_output(0);
    if (!dw) return;
    const int64_t n = dw.num_elements();
    for (int64_t i = 0; i < n; ++i) {
      double sum = c.grad_param_beta(0) != 0 ? dw.data<float>()[i] : 0.0;
      for (int64_t row = 0; dy && row < x.num_elements() / n; ++row)
        sum += static_cast<double>(x.data<float>()[row * n + i]) * dy.data<float>()[row * n + i];
      dw.data<float>()[i] = static_cast<float>(sum);
    }
  }

 private:
  static void run(const BorrowedTensor& x, const BorrowedTensor& weight, float* y) {
    const int64_t n = weight.num_elements();
    for (int64_t i = 0; i < x.num_elements(); ++i) y[i] = x.data<float>()[i] * (1 + weight.data<float>()[i % n]);
  }
  const Host& host_;
};

class Place final : public Kernel {  // y = x · (1 + position / 100)
 public:
  explicit Place(const Host& host) : host_(host) {}
  void forward(Call& c) override { run(c.input(0), c.input(1), c.output(0).data<float>()); }
  void backward_inputs(Call& c) override {
    const auto dy = c.grad_output(0);
    if (!dy) return;
    Tensor dx = Tensor::create_like(host_, dy);
    run(dy, c.input(1), dx.data<float>());
    c.set_grad_input(0, std::move(dx));
  }

 private:
  static void run(const BorrowedTensor& x, const BorrowedTensor& positions, float* y) {
    const int64_t n = x.num_elements() / std::max<int64_t>(1, positions.num_elements());
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      const int64_t row = i / n;
      y[i] = x.data<float>()[i] * (1 + static_cast<float>(positions.data<int32_t>()[row]) / 100);
    }
  }
  const Host& host_;
};

// The sum of factor · (log Σ exp)² over the labels (Chowdhery et al. 2022, "PaLM").
class ZLoss final : public Kernel {
 public:
  ZLoss(const Host& host, double factor) : host_(host), factor_(factor) {}
  void forward(Call& c) override {
    double sum = 0;
    each_row(c, [&](const BorrowedTensor&, int64_t, double log_sum) { sum += factor_ * log_sum * log_sum; });
    const auto loss = c.output(0);
    if (loss.dtype() == CHASSIS_DTYPE_F32)
      *loss.data<float>() = static_cast<float>(sum);
    else
      *loss.data<uint16_t>() = to_bf16(static_cast<float>(sum));
  }
  void backward_inputs(Call& c) override {
    const auto x = c.input(0), dy = c.grad_output(0);
    if (!dy || !c.wants_grad_input(0)) return;
    const double g = dy.dtype() == CHASSIS_DTYPE_F32 ? *dy.data<float>() : from_bf16(*dy.data<uint16_t>());
    Tensor dx = Tensor::create_like(host_, x);
    const bool is_wide = x.dtype() == CHASSIS_DTYPE_F32;
    const auto store = [&](int64_t i, double value) {
      if (is_wide)
        dx.data<float>()[i] = static_cast<float>(value);
      else
        dx.data<uint16_t>()[i] = to_bf16(static_cast<float>(value));
    };
    for (int64_t i = 0; i < x.num_elements(); ++i) store(i, 0);
    each_row(c, [&](const BorrowedTensor&, int64_t first, double log_sum) {
      for (int64_t v = 0; v < x.size(-1); ++v)
        store(first + v, g * std::exp(at(x, first + v) - log_sum) * 2 * factor_ * log_sum);
    });
    c.set_grad_input(0, std::move(dx));
  }

 private:
  static double at(const BorrowedTensor& x, int64_t i) {
    return x.dtype() == CHASSIS_DTYPE_F32 ? x.data<float>()[i] : from_bf16(x.data<uint16_t>()[i]);
  }
  template <typename Body>
  static void each_row(Call& c, Body&& body) {
    const auto x = c.input(0), labels = c.input(1);
    const int64_t vocab = x.size(-1);
    for (int64_t row = 0; row < labels.num_elements(); ++row) {
      const int32_t label = labels.data<int32_t>()[row];
      if (label == -100) continue;
      if (label < 0 || label >= vocab) throw Failure(CHASSIS_OUT_OF_RANGE, "label ", label, " of ", vocab, " columns");
      double most = -1e30, sum = 0;
      for (int64_t v = 0; v < vocab; ++v) most = std::max(most, at(x, row * vocab + v));
      for (int64_t v = 0; v < vocab; ++v) sum += std::exp(at(x, row * vocab + v) - most);
      body(x, row * vocab, most + std::log(sum));
    }
  }
  const Host& host_;
  const double factor_;
};

class OwnOps final : public Ops {
 public:
  static constexpr std::string_view kId = "own_ops";
  static constexpr std::string_view kDoc = "the ops of model own_ops, for tests";
  static constexpr std::string_view kPatterns[] = {"trial/center", "trial/shift",  "trial/relu2",    "trial/gain",
                                                   "trial/place",  "trial/z_loss", "trial/z_squares"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({});
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs on the CPU only");
    host().log(CHASSIS_LOG_INFO, node.op(0).id(), " gives ", dtype_name(node.output(0).dtype()));
    return 1;
  }
  void infer(const NodeView& node, Infer& out) override {
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS).keeps_input(0);
    if (node.num_inputs() > 1) out.keeps_input(1);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    const std::string_view id = node.op(0).id();
    if (id == "trial/center") return std::make_unique<Center>(host());
    if (id == "trial/shift") return std::make_unique<TimeShift>(host());
    if (id == "trial/relu2") return std::make_unique<Relu2>(host());
    if (id == "trial/gain") return std::make_unique<Gain>(host());
    if (id == "trial/place") return std::make_unique<Place>(host());
    return std::make_unique<ZLoss>(host(), id == "trial/z_loss" ? 1e-3 : 1.0);
  }
};

// Gradient descent by gradients of the same size in every step, with momentum: a sum over all parameters decides.
class Normalised final : public Optimizer {
 public:
  static constexpr std::string_view kId = "normalised";
  static constexpr std::string_view kDoc = "normalised gradient descent, for tests";
  static constexpr bool kSums = true;
  using Optimizer::Optimizer;

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kStates[] = {element_state("momentum")};
    return kStates;
  }
  void step(const OptimizerStep& s) override {
    std::vector<double> squares;  // and the number of elements
    for (uint32_t i = 0; i < s.num_tensors(); ++i) {
      double sum = 0;
      const int64_t elements = s.parameter(i).num_local_elements();
      const float* const g = s.grad(i).data<float>();
      for (int64_t e = 0; e < elements; ++e) sum += static_cast<double>(g[e]) * g[e];
      squares.push_back(sum * s.grad_scale() * s.grad_scale()), squares.push_back(static_cast<double>(elements));
    }
    const std::vector<double> sums = s.sum_over_parameters(squares, 2);
    const double rms = std::sqrt(sums[0] / sums[1]) + 1e-12;
    for (uint32_t i = 0; i < s.num_tensors(); ++i) {
      float *const p = s.param(i).data<float>(), *const m = s.state(i, 0).data<float>();
      const float* const g = s.grad(i).data<float>();
      const int64_t elements = s.param(i).num_elements();
      for (int64_t e = 0; e < elements; ++e) {
        m[e] = static_cast<float>(0.5 * m[e] + g[e] * s.grad_scale() / rms);
        p[e] = static_cast<float>(p[e] * (1 - s.lr(i) * s.weight_decay(i)) - s.lr(i) * m[e]);
      }
    }
  }
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.tensor/1\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    OwnOpsModel, OwnOps, Normalised)
