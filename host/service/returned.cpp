// Checks of handles and of tensor metadata.
#include "host/service/returned.hpp"

#include <ATen/core/TensorBody.h>

#include <fmt/core.h>

#include <algorithm>

#include "host/service/handle.hpp"
#include "host/service/ledger.hpp"

namespace chassis {
namespace {

bool is_on(const at::Tensor& tensor, Device device) {
  const DeviceSpec& spec = device.spec();
  if (tensor.device().type() != torch_device_type(spec)) return false;
  return !spec.has_index || tensor.device().index() == device.index;
}

std::string text_of(const std::string& dtype, at::IntArrayRef sizes, const std::string& device) {
  std::string text = dtype + "[";
  for (size_t d = 0; d < sizes.size(); ++d) text += (d ? ", " : "") + std::to_string(sizes[d]);
  return text + "] on " + device;
}

bool is_known(c10::ScalarType type) {
  return std::any_of(kAllDtypes.begin(), kAllDtypes.end(), [&](Dtype dtype) { return scalar_type(dtype) == type; });
}

}  // namespace

std::string lent_or_unknown_handle(chassis_tensor_t handle, bool tracked, std::span<const LentHandles> lent) {
  for (const LentHandles& group : lent)
    for (size_t i = 0; i < group.handles.size(); ++i)
      if (group.handles[i] == handle)
        return fmt::format("the handle of {} {}, which is only lent; retain makes a handle that can be returned",
                           group.what, i);
  if (!tracked || ledger::holds(handle)) return "";
  return fmt::format("{}, which is not a handle that it holds: it was already released, or never was a handle",
                     static_cast<const void*>(handle));
}

bool matches_expected(chassis_tensor_t handle, const ExpectedTensor& expected) {
  const at::Tensor& tensor = tensor_of(handle);
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.scalar_type() == scalar_type(expected.dtype) &&
         is_on(tensor, expected.device) && std::ranges::equal(tensor.sizes(), expected.sizes) && tensor.is_contiguous();
}

std::string mismatch_text(chassis_tensor_t handle, const ExpectedTensor& expected) {
  const at::Tensor& tensor = tensor_of(handle);
  if (!tensor.defined()) return "as a tensor without memory";
  if (tensor.layout() != at::kStrided) return "in a layout that is not strided";
  const c10::ScalarType type = tensor.scalar_type();
  const std::string made = text_of(is_known(type) ? std::string(dtype_name(dtype_of(type))) : c10::toString(type),
                                   tensor.sizes(), tensor.is_meta() ? "meta" : tensor.device().str());
  const std::string wanted = text_of(std::string(dtype_name(expected.dtype)),
                                     {expected.sizes.data(), expected.sizes.size()}, expected.device.text());
  if (made != wanted) return "as " + made + ", expected " + wanted;
  std::string strides;
  for (const int64_t stride : tensor.strides()) strides += (strides.empty() ? "" : ", ") + std::to_string(stride);
  return "with strides [" + strides + "], expected a contiguous tensor";
}

bool share_memory(chassis_tensor_t a, chassis_tensor_t b) {
  return a && b && tensor_of(a).has_storage() && tensor_of(a).is_alias_of(tensor_of(b));
}

}  // namespace chassis
