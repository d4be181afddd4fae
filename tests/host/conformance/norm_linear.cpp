// RMSNorm fused with the linear after it, a pattern that no op of the reference has. The normed rows are never kept.
// fp32, CPU. The environment variable NONCONFORMING selects a fault.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "chassis/cost.hpp"
#include "chassis/gemm.hpp"
#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"
#include "chassis/task.hpp"

namespace {
using namespace chassis;

bool has(std::string_view fault) {
  const char* const chosen = std::getenv("NONCONFORMING");
  return chosen != nullptr && fault == chosen;
}

class NormLinearKernel final : public Kernel {
 public:
  NormLinearKernel(const Host& host, const NodeView& n)
      : host_(host),
        eps_(n.op(0).attr_float("eps")),
        in_(n.op(1).param(0).size(1)),
        out_(n.op(1).param(0).size(0)),
        norm_leaves_(n.num_outputs() == 2),
        norm_at_(norm_leaves_ && n.raw().outputs[1] == n.raw().ops[0]->outputs[0] ? 1 : 0),
        lin_at_(norm_leaves_ ? 1 - norm_at_ : 0) {}

  void forward(Call& c) override {
    const auto x = c.input(0), w = c.param(0), W = c.param(1), bias = c.param(2);
    const int64_t rows = x.num_elements() / in_;
    Tensor rstd = Tensor::create(host_, CHASSIS_DTYPE_F32, {rows});
    float* n = norm_leaves_ ? c.output(norm_at_).data<float>() : static_cast<float*>(c.workspace());
    normed(x.data<float>(), w.data<float>(), n, rstd.data<float>(), rows, true);
    float* y = c.output(lin_at_).data<float>();
    if (bias)
      for (int64_t r = 0; r < rows; ++r) std::memcpy(y + r * out_, bias.data<float>(), out_ * 4);
    auto p = gemm_problem(CHASSIS_DTYPE_F32, CHASSIS_DTYPE_F32, rows, out_, in_);
    p.flags = CHASSIS_GEMM_TRANSPOSE_B, p.a = n, p.b = W.data<float>(), p.c = y;
    p.lda = in_, p.ldb = in_, p.ldc = out_, p.beta = bias ? 1 : 0;
    gemm(host_, p);
    c.save(0, std::move(rstd));
  }

  void backward_inputs(Call& c) override {
    if (!c.wants_grad_input(0)) return;
    const auto x = c.input(0);
    const int64_t rows = x.num_elements() / in_;
    Tensor dx = Tensor::create(host_, CHASSIS_DTYPE_F32, x.sizes());
    std::vector<float> dn(static_cast<size_t>(rows * in_));
    grad_normed(c, rows, dn.data());
    const float *w = c.param(0).data<float>(), *xs = x.data<float>(), *rstd = c.saved(0).data<float>();
    float* out = dx.data<float>();
    parallel_for(host_, rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        double mean = 0;
        for (int64_t i = 0; i < in_; ++i)
          mean += static_cast<double>(dn[r * in_ + i]) * w[i] * xs[r * in_ + i] * rstd[r];
        mean /= in_;
        if (has("no projection")) mean = 0;
        for (int64_t i = 0; i < in_; ++i)
          out[r * in_ + i] = rstd[r] * (dn[r * in_ + i] * w[i] - static_cast<float>(xs[r * in_ + i] * rstd[r] * mean));
      }
    });
    c.set_grad_input(0, std::move(dx));
  }

  void backward_params(Call& c) override {
    const auto x = c.input(0);
    const int64_t rows = x.num_elements() / in_;
    const float *rstd = c.saved(0).data<float>(), *xs = x.data<float>();
    if (const auto dw = c.grad_param(0)) {
      std::vector<float> dn(static_cast<size_t>(rows * in_));
      grad_normed(c, rows, dn.data());
      std::vector<double> sum(static_cast<size_t>(in_));
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < in_; ++i) sum[i] += static_cast<double>(dn[r * in_ + i]) * xs[r * in_ + i] * rstd[r];
      add(dw, c.grad_param_beta(0), sum);
    }
    const auto dy = c.grad_output(lin_at_);
    if (const auto dW = c.grad_param(1)) {
      if (!dy) {
        if (c.grad_param_beta(1) == 0) std::memset(dW.data<float>(), 0, static_cast<size_t>(in_ * out_) * 4);
      } else {
        std::vector<float> n(static_cast<size_t>(rows * in_));
        normed(xs, c.param(0).data<float>(), n.data(), const_cast<float*>(rstd), rows, false);
        auto p = gemm_problem(CHASSIS_DTYPE_F32, CHASSIS_DTYPE_F32, out_, in_, rows);
        p.flags = CHASSIS_GEMM_TRANSPOSE_A, p.a = dy.data<float>(), p.b = n.data(), p.c = dW.data<float>();
        p.lda = out_, p.ldb = in_, p.ldc = in_, p.beta = has("overwrites gradients") ? 0.0f : c.grad_param_beta(1);
        gemm(host_, p);
      }
    }
    if (const auto db = c.grad_param(2)) {
      std::vector<double> sum(static_cast<size_t>(out_));
      if (dy)
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t o = 0; o < out_; ++o) sum[o] += dy.data<float>()[r * out_ + o];
      add(db, c.grad_param_beta(2), sum);
    }
  }

 private:
  void normed(const float* x, const float* w, float* n, float* rstd, int64_t rows, bool first) const {
    parallel_for(host_, rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (first) {
          double sum = 0;
          for (int64_t i = 0; i < in_; ++i) sum += static_cast<double>(x[r * in_ + i]) * x[r * in_ + i];
          rstd[r] = static_cast<float>(1 / std::sqrt(sum / in_ + eps_));
        }
        for (int64_t i = 0; i < in_; ++i) n[r * in_ + i] = x[r * in_ + i] * rstd[r] * w[i];
      }
    });
  }
  // Gradient of the norm's output.
  void grad_normed(Call& c, int64_t rows, float* dn) const {
    const auto dy = c.grad_output(lin_at_), own = norm_leaves_ ? c.grad_output(norm_at_) : BorrowedTensor();
    if (own)
      std::memcpy(dn, own.data<float>(), static_cast<size_t>(rows * in_) * 4);
    else
      std::memset(dn, 0, static_cast<size_t>(rows * in_) * 4);
    if (!dy) return;
    auto p = gemm_problem(CHASSIS_DTYPE_F32, CHASSIS_DTYPE_F32, rows, in_, out_);
    p.a = dy.data<float>(), p.b = c.param(1).data<float>(), p.c = dn;
    p.lda = out_, p.ldb = in_, p.ldc = in_, p.beta = 1;
    gemm(host_, p);
  }
  static void add(const BorrowedTensor& to, float beta, const std::vector<double>& sum) {
    float* p = to.data<float>();
    for (size_t i = 0; i < sum.size(); ++i) p[i] = static_cast<float>((beta != 0 ? p[i] : 0) + sum[i]);
  }
  const Host& host_;
  const double eps_;
  const int64_t in_, out_;
  const bool norm_leaves_;
  const uint32_t norm_at_, lin_at_;
};

class NormLinear final : public Ops {
 public:
  static constexpr std::string_view kDoc = "RMSNorm fused with the linear that reads it";
  static constexpr std::string_view kPatterns[] = {"rms_norm+linear"};
  using Ops::Ops;
  double claim(const NodeView& n) override {
    n.op(0).refuse_attrs_other_than({"eps"});
    n.op(1).refuse_attrs_other_than({});
    if (n.device_type() != CHASSIS_DEVICE_CPU) refuse("runs on the CPU only");
    for (int i = 0; i < n.num_outputs(); ++i)
      if (n.output(i).dtype() != CHASSIS_DTYPE_F32) refuse("computes in float32 only");
    if (n.input(0).dtype() != CHASSIS_DTYPE_F32) refuse("computes in float32 only");
    if (n.op(0).param(0).num_elements() != n.op(1).param(0).size(1)) refuse("norms less than the linear reads");
    return 0.8 * cost_ns(host(), n, 2);
  }
  void infer(const NodeView& n, Infer& out) override {
    const int64_t rows = n.input(0).num_elements() / n.op(1).param(0).size(1);
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_HOST_WORKSPACE | CHASSIS_KERNEL_INNER_OUTPUTS);
    out.keeps_input(0);
    out.saves(CHASSIS_DTYPE_F32, {rows});
    out.workspace(static_cast<uint64_t>(n.input(0).num_elements()) * 4,
                  static_cast<uint64_t>(n.input(0).num_elements()) * 8);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView& n) override {
    return std::make_unique<NormLinearKernel>(host(), n);
  }
};
}  // namespace
CHASSIS_PLUGIN("requires=chassis.gemm/1\nrequires=chassis.task/1\nrequires=chassis.tensor/1\nlicense=Apache-2.0\n",
               NormLinear)
