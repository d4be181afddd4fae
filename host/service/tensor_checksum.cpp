// In memory, uses the processor's instruction; on a device, uses sums, which change with any change of one element.
#include "host/service/tensor_checksum.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "host/base/hash.hpp"
#include "host/service/handle.hpp"

namespace chassis {
namespace {

// Divides the bytes into blocks for the threads.
uint64_t checksum_in_memory(const at::Tensor& tensor) {
  constexpr int64_t kBlockBytes = 1 << 20;
  const at::Tensor plain = tensor.contiguous();
  const auto* const bytes = static_cast<const char*>(plain.const_data_ptr());
  const auto num_bytes = static_cast<int64_t>(plain.nbytes());
  std::vector<uint32_t> sums(static_cast<size_t>((num_bytes + kBlockBytes - 1) / kBlockBytes));
  at::parallel_for(0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      sums[static_cast<size_t>(b)] =
          crc32c(0, bytes + b * kBlockBytes, static_cast<size_t>(std::min(kBlockBytes, num_bytes - b * kBlockBytes)));
  });
  return hash64({reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint32_t)}, 0);
}

// Sums of integers with odd weights.
uint64_t checksum_on_device(const at::Tensor& tensor) {
  constexpr int64_t kChunk = 1 << 22;  // elements that are widened at a time
  constexpr int64_t kFactor = 0x5851f42d4c957f2d;
  const at::Tensor flat = tensor.contiguous().view({-1});
  const at::Tensor whole = flat.view(flat.nbytes() % 4 == 0 && flat.element_size() <= 4 ? at::kInt : at::kByte);
  const int64_t count = whole.numel();
  const auto wide_options = whole.options().dtype(at::kLong);
  const at::Tensor weights = at::arange(std::min(kChunk, count), wide_options).mul_(2).add_(1);
  at::Tensor sum = at::zeros({}, wide_options);
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t length = std::min(kChunk, count - begin);
    const at::Tensor wide = whole.narrow(0, begin, length).to(at::kLong).mul_(weights.narrow(0, 0, length));
    sum.mul_(kFactor).add_(wide.sum());
  }
  return static_cast<uint64_t>(sum.item().toLong());
}

}  // namespace

uint64_t checksum_of(const Tensor& tensor) {
  return translate_errors([&] {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor& held = tensor_of(tensor.handle());
    if (held.numel() == 0) return uint64_t{0};
    return held.is_cpu() ? checksum_in_memory(held) : checksum_on_device(held);
  });
}

}  // namespace chassis
