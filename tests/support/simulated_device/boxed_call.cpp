// Every operator without a kernel of its own runs as on the CPU, on views of the device's memory. Operators that only
// write to their arguments are queued on the current stream; others, whose results are known when they have run, wait
// for that stream and run in the caller.
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/support/simulated_device/host_view.hpp"
#include "tests/support/simulated_device/stream.hpp"

namespace simulated_device {
namespace {

using c10::IValue;

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Calls `change` for each tensor of a value, and returns the value with its results.
template <typename Change>
IValue with_tensors(const IValue& value, Change&& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      changed.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    return changed;
  }
  return value;
}

class BoxedCall {
 public:
  BoxedCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), schema_(op.schema()), arguments_(torch::jit::pop(stack, schema_.arguments().size())) {
    for (size_t i = 0; i < arguments_.size(); ++i) inspect(schema_.arguments()[i], arguments_[i]);
    TORCH_CHECK(device_ || host_tensor_.empty(), schema_.name(), ": no argument is on a device");
    if (!device_) device_ = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(current_device()));
  }

  void run(torch::jit::Stack& stack) {
    Stream& stream = current_stream(device_->index());
    for (const IValue& argument : arguments_)
      views_of_arguments_.push_back(
          argument.isDevice() ? IValue(c10::Device(c10::kCPU))
                              : with_tensors(argument, [&](const at::Tensor& tensor) { return views_.of(tensor); }));
    if (is_queued_ && writes_arguments_only()) {
      stream.enqueue_work(
          [op = op_, arguments = std::move(views_of_arguments_)]() mutable {
            const at::AutoDispatchBelowADInplaceOrView below_autograd;
            torch::jit::Stack own = std::move(arguments);
            op.callBoxed(own);
          },
          Stream::Delay::kSometimes);
      for (const c10::Argument& result : schema_.returns()) stack.push_back(argument_of(result));
      return;
    }
    stream.wait();
    use_resizable_outputs();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op_.callBoxed(views_of_arguments_);
    for (const auto& [out, view] : resizable_) {
      out.resize_(view.sizes());
      out.copy_(view);
    }
    for (const IValue& result : views_of_arguments_)
      stack.push_back(with_tensors(result, [&](const at::Tensor& tensor) { return on_device(tensor); }));
  }

 private:
  // Finds the device, and what keeps the call from being queued.
  void inspect(const c10::Argument& argument, const IValue& value) {
    if (value.isDevice() && value.toDevice().is_cuda()) device_ = value.toDevice();
    if (value.isGenerator() || argument.name() == "generator") is_queued_ = false;
    with_tensors(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      if (tensor.is_cuda()) {
        TORCH_CHECK(!device_ || *device_ == tensor.device() || value.isOptionalTensorList(), schema_.name(),
                    ": Expected all tensors to be on the same device, but found ", *device_, " and ", tensor.device());
        device_ = tensor.device();
        if (is_written(argument) && tensor.numel() == 0) is_queued_ = false;
        return tensor;
      }
      // As on CUDA, numbers may be tensors of the CPU, and so may indices.
      const bool may_be_on_host = (tensor.dim() == 0 && !is_written(argument)) || value.isOptionalTensorList();
      TORCH_CHECK(may_be_on_host, schema_.name(), ": Expected all tensors to be on the same device, but '",
                  argument.name(), "' is on ", tensor.device());
      host_tensor_ = argument.name();
      if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) is_queued_ = false;
      return tensor;
    });
  }

  bool writes_arguments_only() const {
    bool writes = false;
    for (const c10::Argument& argument : schema_.arguments()) writes |= is_written(argument);
    for (const c10::Argument& result : schema_.returns())
      if (!is_written(result) || !argument_with_sets_of(result)) return false;
    return writes;
  }

  std::optional<size_t> argument_with_sets_of(const c10::Argument& result) const {
    for (size_t i = 0; i < arguments_.size(); ++i)
      if (is_written(schema_.arguments()[i]) &&
          schema_.arguments()[i].alias_info()->beforeSets() == result.alias_info()->beforeSets())
        return i;
    return std::nullopt;
  }
  IValue argument_of(const c10::Argument& result) const { return arguments_[*argument_with_sets_of(result)]; }

  // An output without elements gets its size from the call.
  void use_resizable_outputs() {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      if (!is_written(schema_.arguments()[i]) || !arguments_[i].isTensor()) continue;
      const at::Tensor& out = arguments_[i].toTensor();
      if (!out.defined() || !out.is_cuda() || out.numel() > 0) continue;
      const at::Tensor view = at::empty(out.sizes(), out.options().device(c10::kCPU));
      views_of_arguments_[i] = view;
      resizable_.emplace_back(out, view);
    }
  }

  at::Tensor on_device(const at::Tensor& tensor) const {
    if (!tensor.defined()) return tensor;
    for (const auto& [out, view] : resizable_)
      if (view.is_same(tensor)) return out;
    if (at::Tensor original = views_.original(tensor); original.defined()) return original;
    const at::Tensor owner = views_.sharing(tensor);
    if (!owner.defined()) return upload(tensor, *device_);
    return owner.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }

  const c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  std::vector<IValue> arguments_, views_of_arguments_;
  HostViews views_;
  std::vector<std::pair<at::Tensor, at::Tensor>> resizable_;
  std::optional<c10::Device> device_;
  std::string host_tensor_;
  bool is_queued_ = true;
};

void run_as_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { BoxedCall(op, *stack).run(*stack); }

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_as_on_cpu>()); }

}  // namespace
}  // namespace simulated_device
