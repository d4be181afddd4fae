// Log sums of exponentials by LibTorch.
#include "host/service/log_sum.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/logsumexp.h>

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

}  // namespace chassis
