// LibTorch's attention kernels for CUDA, with the layouts and masks of the real ones, computed in fp32 and without
// dropout.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "tests/support/simulated_device/host_view.hpp"
#include "tests/support/simulated_device/stream.hpp"

namespace simulated_device {
namespace {

using at::Tensor;
using Integer = std::optional<c10::SymInt>;
using Window = std::array<std::optional<int64_t>, 2>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// All of [B, H, T, D] in fp32, with as many heads of keys and values as of queries.
struct Problem {
  Tensor q, k, v, bias;
  double scale = 1.0;

  Tensor scores() const {
    const Tensor all = at::matmul(q, k.transpose(-2, -1)).mul_(scale);
    return bias.defined() ? all + bias : all;
  }
};

struct Gradients {
  Tensor q, k, v;
};

double scale_of(std::optional<double> given, const Tensor& q) {
  return given.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
}

// -inf where a query may not see a key. The last query sees the last key.
Tensor band(int64_t queries, int64_t keys, bool causal, const Window& window) {
  const Tensor t = at::arange(queries).unsqueeze(1) + (keys - queries), s = at::arange(keys).unsqueeze(0);
  Tensor hidden = at::zeros({queries, keys}, at::kBool);
  if (causal) hidden = hidden.logical_or(s > t);
  if (window[0] && *window[0] >= 0) hidden = hidden.logical_or(s < t - *window[0]);
  if (window[1] && *window[1] >= 0) hidden = hidden.logical_or(s > t + *window[1]);
  return at::zeros({queries, keys}).masked_fill_(hidden, -kInfinity);
}

Gradients backward(const Problem& problem, const Tensor& dout, const Tensor& out, const Tensor& log_sums) {
  const Tensor weights = at::exp(problem.scores() - log_sums.unsqueeze(-1));
  const Tensor dweights = at::matmul(dout, problem.v.transpose(-2, -1));
  const Tensor dscores = weights * (dweights - (dout * out).sum(-1, true)) * problem.scale;
  return {at::matmul(dscores, problem.k), at::matmul(dscores.transpose(-2, -1), problem.q),
          at::matmul(weights.transpose(-2, -1), dout)};
}

// Waits for the stream, since the results have their sizes from the computation.
class OnHost {
 public:
  explicit OnHost(const Tensor& like) : device_(like.device()) { current_stream(device_.index()).wait(); }
  Tensor floats(const Tensor& tensor) const { return host_view(tensor).to(at::kFloat); }
  Tensor result(const Tensor& values, at::ScalarType dtype) const { return upload(values.to(dtype), device_); }
  // [B, H, T, D] to [B, T, H, D] in memory.
  Tensor rows(const Tensor& values, at::ScalarType dtype) const {
    return result(values.transpose(1, 2).contiguous(), dtype);
  }
  Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
    return at::empty(sizes, at::dtype(dtype).device(device_));
  }

 private:
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  const c10::Device device_;
};

Problem efficient_problem(const OnHost& host, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias,
                          bool causal, std::optional<double> scale) {
  Problem problem{host.floats(q), host.floats(k), host.floats(v), {}, scale_of(scale, q)};
  if (bias.defined()) problem.bias = host.floats(bias);
  if (causal) {
    TORCH_CHECK(q.size(2) == k.size(2), "the causal mask of this kernel begins with the first key");
    const Tensor mask = band(q.size(2), k.size(2), true, {});
    problem.bias = problem.bias.defined() ? problem.bias + mask : mask;
  }
  return problem;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const std::optional<Tensor>& bias, bool with_log_sums,
                                                     double dropout, bool causal, std::optional<double> scale) {
  TORCH_CHECK(dropout == 0.0, "the simulated device has no dropout in attention");
  const OnHost host(q);
  const Problem problem = efficient_problem(host, q, k, v, bias.value_or(Tensor()), causal, scale);
  const Tensor scores = problem.scores(), log_sums = at::logsumexp(scores, -1);
  const Tensor out = at::matmul(at::exp(scores - log_sums.unsqueeze(-1)), problem.v);
  const int64_t queries = q.size(2), padded = with_log_sums ? (queries + 31) / 32 * 32 : 0;
  Tensor saved = at::full({q.size(0), q.size(1), padded}, kInfinity);
  if (with_log_sums) saved.narrow(2, 0, queries).copy_(log_sums);
  return {host.rows(out, q.scalar_type()).transpose(1, 2), host.result(saved, at::kFloat), host.empty({}, at::kLong),
          host.empty({}, at::kLong)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor& bias, const Tensor& out,
                                                              const Tensor& log_sums, const Tensor&, const Tensor&,
                                                              double, std::array<bool, 4> wanted, bool causal,
                                                              std::optional<double> scale) {
  TORCH_CHECK(!wanted[3], "the simulated device has no gradient of the bias");
  const OnHost host(q);
  const Problem problem = efficient_problem(host, q, k, v, bias, causal, scale);
  const Gradients gradients =
      backward(problem, host.floats(dout), host.floats(out), host.floats(log_sums).narrow(2, 0, q.size(2)));
  const auto result = [&](const Tensor& values) { return host.rows(values, q.scalar_type()).transpose(1, 2); };
  return {result(gradients.q), result(gradients.k), result(gradients.v), Tensor()};
}

// The operands of flash attention are [B, T, H, D], and several heads of queries may share one of keys.
struct FlashProblem : Problem {
  FlashProblem(const OnHost& host, const Tensor& query, const Tensor& key, const Tensor& value, bool causal,
               std::optional<double> given, const Window& window)
      : groups(query.size(2) / key.size(2)) {
    const auto heads_first = [&](const Tensor& x) { return host.floats(x).transpose(1, 2); };
    q = heads_first(query);
    k = heads_first(key).repeat_interleave(groups, 1);
    v = heads_first(value).repeat_interleave(groups, 1);
    bias = band(q.size(2), k.size(2), causal, window);
    scale = scale_of(given, q);
  }
  // The sum over the queries' heads that share one of keys.
  Tensor summed(const Tensor& gradient) const {
    return gradient.unflatten(1, {gradient.size(1) / groups, groups}).sum(2);
  }
  int64_t groups;
};

Window window_of(const Integer& left, const Integer& right) {
  const auto number = [](const Integer& x) { return x ? std::optional(x->expect_int()) : std::nullopt; };
  return {number(left), number(right)};
}

// NOLINTBEGIN(performance-unnecessary-value-param): LibTorch's schemas pass integers by value
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash(const Tensor& q, const Tensor& k, const Tensor& v,
                                                         const std::optional<Tensor>& starts,
                                                         const std::optional<Tensor>&, c10::SymInt, c10::SymInt,
                                                         double dropout, bool causal, bool, std::optional<double> scale,
                                                         Integer left, Integer right, const std::optional<Tensor>&,
                                                         const std::optional<Tensor>&) {
  TORCH_CHECK(dropout == 0.0 && !starts, "the simulated device has no dropout or packed rows in attention");
  const OnHost host(q);
  const FlashProblem problem(host, q, k, v, causal, scale, window_of(left, right));
  const Tensor scores = problem.scores(), log_sums = at::logsumexp(scores, -1);
  const Tensor out = at::matmul(at::exp(scores - log_sums.unsqueeze(-1)), problem.v);
  return {host.rows(out, q.scalar_type()), host.result(log_sums, at::kFloat), host.empty({2}, at::kUInt64),
          host.empty({0}, at::kUInt64), host.empty({0}, q.scalar_type())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& log_sums, const Tensor&,
                                                  const Tensor&, c10::SymInt, c10::SymInt, double, bool causal,
                                                  const Tensor&, const Tensor&, std::optional<double> scale,
                                                  Integer left, Integer right) {
  const OnHost host(q);
  const FlashProblem problem(host, q, k, v, causal, scale, window_of(left, right));
  const Gradients gradients =
      backward(problem, host.floats(dout).transpose(1, 2), host.floats(out).transpose(1, 2), host.floats(log_sums));
  return {host.rows(gradients.q, q.scalar_type()), host.rows(problem.summed(gradients.k), q.scalar_type()),
          host.rows(problem.summed(gradients.v), q.scalar_type())};
}
// NOLINTEND(performance-unnecessary-value-param)

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_scaled_dot_product_efficient_attention", &efficient);
  library.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  library.impl("_flash_attention_forward", &flash);
  library.impl("_flash_attention_backward", &flash_backward);
}

}  // namespace
}  // namespace simulated_device
