// Log sums of exponentials by LibTorch.
#include "host/service/log_sum.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/nan_to_num.h>

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "host/service/handle.hpp"

namespace chassis {

Tensor log_sum_of_rows(const Tensor& log_sums) {
  if (log_sums.device().type == Device::Type::kMeta) {  // LibTorch has no logsumexp there
    const std::vector<int64_t> sizes = log_sums.sizes();
    return Tensor::empty(std::span(sizes).subspan(1), log_sums.dtype(), log_sums.device());
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return Tensor::adopt(new_handle(at::logsumexp(tensor_of(log_sums.handle()), 0)));
}

Tensor log_sum_gradient(const Tensor& gradient, const Tensor& own, const Tensor& whole) {
  if (own.device().type == Device::Type::kMeta) return Tensor::empty(own.sizes(), own.dtype(), own.device());
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor share = tensor_of(own.handle()).sub(tensor_of(whole.handle()));
  share.exp_().mul_(tensor_of(gradient.handle()));
  return Tensor::adopt(new_handle(std::move(share)));
}

void merge_attention(const Tensor& output, const Tensor& log_sum, const Tensor& more_output,
                     const Tensor& more_log_sum) {
  if (output.device().type == Device::Type::kMeta) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  at::Tensor& own = tensor_of(log_sum.handle());
  const at::Tensor& more = tensor_of(more_log_sum.handle());
  const at::Tensor both = at::logaddexp(own, more);
  // The weight of a part, as factors of [B, T, h, D]. -inf - -inf is not a number: the weight of such a part is 0.
  const auto share = [&](const at::Tensor& part) {
    return at::nan_to_num(part.sub(both).exp_(), 0.0).transpose(1, 2).unsqueeze(-1);
  };
  at::Tensor& sum = tensor_of(output.handle());
  sum.mul_(share(own)).add_(tensor_of(more_output.handle()).mul(share(more)));
  own.copy_(both);
}

Tensor log_sum_for_backward(const Tensor& log_sum) {
  if (log_sum.device().type == Device::Type::kMeta) return log_sum;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& values = tensor_of(log_sum.handle());
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return Tensor::adopt(new_handle(values.masked_fill(values.eq(-kInfinity), kInfinity)));
}

}  // namespace chassis
