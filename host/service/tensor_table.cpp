// chassis.tensor/1: tensors for plugins.
#include "chassis/service/tensor.h"

#include <ATen/DLConvertor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/dlpack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "host/base/device_types.hpp"
#include "host/base/log.hpp"
#include "host/plugin/manifest.hpp"
#include "host/plugin/status.hpp"
#include "host/service/handle.hpp"
#include "host/service/tables.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

at::TensorOptions options_of(uint32_t dtype, uint32_t device_type, int32_t device_index) {
  const Dtype type = static_cast<Dtype>(dtype);
  if (size_bytes(type) == 0) throw plugin_error("dtype " + std::to_string(dtype) + " is unknown");
  const DeviceSpec* const spec = find_device_spec(device_type);
  if (!spec) throw plugin_error("device type " + std::to_string(device_type) + " is unknown");
  const auto index = static_cast<c10::DeviceIndex>(spec->has_index ? device_index : -1);
  return at::TensorOptions(scalar_type(type)).device(at::Device(torch_device_type(*spec), index));
}

at::IntArrayRef shape_of(const int64_t* sizes, uint32_t num_dims) {
  if (num_dims > 0 && !sizes) throw plugin_error("sizes are NULL");
  for (uint32_t i = 0; i < num_dims; ++i)
    if (sizes[i] < 0) throw plugin_error("size " + std::to_string(sizes[i]) + " is negative");
  return {sizes, num_dims};
}

// Throws for tensors without plain memory, such as sparse ones.
chassis_tensor_view_t view_of_tensor(const at::Tensor& tensor) {
  chassis_tensor_view_t full{};
  try {
    full.dtype = static_cast<uint32_t>(dtype_of(tensor.scalar_type()));
  } catch (const Error&) {
    full.dtype = 0;  // not in the ABI
  }
  const at::Device device = tensor.device();
  const DeviceSpec* const spec = spec_of(device.type());
  full.device_type = spec ? spec->id : CHASSIS_DEVICE_CPU;
  full.device_index = spec && spec->has_index ? device.index() : 0;
  full.num_elements = tensor.numel();
  full.data = full.device_type == CHASSIS_DEVICE_META || full.num_elements == 0 ? nullptr : tensor.mutable_data_ptr();
  full.num_dims = static_cast<uint32_t>(tensor.dim());
  full.is_contiguous = tensor.is_contiguous();
  full.sizes = tensor.sizes().data();
  full.strides = tensor.strides().data();
  return full;
}

void view(chassis_tensor_t handle, chassis_tensor_view_t* out) {
  chassis_tensor_view_t full{};
  guarded_void([&] { full = view_of_tensor(tensor_of(handle)); });
  full.struct_size = out->struct_size;
  std::memcpy(out, &full, std::min<size_t>(out->struct_size, sizeof full));
}

class TensorTable final : public Table {
 public:
  explicit TensorTable(const TableContext& context) : context_(context) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.view = view;
    table_.create = [](const chassis_tensor_service_t* t, uint32_t dtype, uint32_t device_type, int32_t device_index,
                       uint32_t num_dims, const int64_t* sizes, chassis_tensor_t* out) {
      return self(t).make_handle(
          out, [&] { return at::empty(shape_of(sizes, num_dims), options_of(dtype, device_type, device_index)); });
    };
    table_.from_memory = [](const chassis_tensor_service_t* t, void* data, uint32_t dtype, uint32_t device_type,
                            int32_t device_index, uint32_t num_dims, const int64_t* sizes, void (*release)(void*),
                            void* context, chassis_tensor_t* out) {
      return self(t).make_handle(out, [&] {
        const auto shape = shape_of(sizes, num_dims);
        if (data == nullptr && c10::multiply_integers(shape) != 0)
          throw plugin_error("from_memory got NULL for " + std::to_string(c10::multiply_integers(shape)) + " elements");
        const auto options = options_of(dtype, device_type, device_index);
        if (!release) return at::from_blob(data, shape, options);
        return at::from_blob(data, shape, [release, context](void*) { release(context); }, options);
      });
    };
    table_.retain = [](const chassis_tensor_service_t* t, chassis_tensor_t tensor, chassis_tensor_t* out) {
      return self(t).make_handle(out, [&] { return at::Tensor(tensor_of(tensor)); });
    };
    table_.release = [](const chassis_tensor_service_t* t, chassis_tensor_t tensor) {
      if (!tensor) return;
      if (ledger::remove(tensor) || self(t).can_make_handles_) return delete_handle(tensor);
      // Rationale: freeing a tensor that the plugin never owned would corrupt the heap; keeping it leaks at worst.
      counted_warning("tensors that '" + self(t).context_.instance.member_id + "' released without owning them",
                      self(t).context_.instance.member_id + " released a tensor that it does not own; ignored");
    };
    table_.to_dlpack = [](const chassis_tensor_service_t*, chassis_tensor_t tensor, DLManagedTensorVersioned** out) {
      return guarded([&] { translate_errors([&] { *out = at::toDLPackVersioned(tensor_of(tensor)); }); });
    };
    table_.from_dlpack = [](const chassis_tensor_service_t* t, DLManagedTensorVersioned* dlpack,
                            chassis_tensor_t* out) {
      if (dlpack->version.major != DLPACK_MAJOR_VERSION)
        return make_status(CHASSIS_UNIMPLEMENTED, "cannot read DLPack " + std::to_string(dlpack->version.major) + "." +
                                                      std::to_string(dlpack->version.minor) + "; this host reads " +
                                                      std::to_string(DLPACK_MAJOR_VERSION) + ".x");
      return self(t).make_handle(out, [&] { return at::fromDLPackVersioned(dlpack); });
    };
  }
  const void* get() const override { return &table_; }

 private:
  static const TensorTable& self(const chassis_tensor_service_t* t) {
    return *static_cast<const TensorTable*>(t->impl);
  }

  template <typename Make>
  chassis_status_t* make_handle(chassis_tensor_t* out, Make make) const noexcept {
    return guarded([&] {
      translate_errors([&] {
        at::AutoDispatchBelowADInplaceOrView guard;
        *out = new_handle(make());
        ledger::add(*out, context_.handles);
      });
    });
  }

  const TableContext& context_;
  // Plugins of tiers T1 and T2 can make handles through LibTorch; these are not in the ledger.
  const bool can_make_handles_ = context_.instance.manifest && context_.instance.manifest->tier != Tier::kT0;
  chassis_tensor_service_t table_{};
};

}  // namespace

std::unique_ptr<Table> make_tensor_table(const TableContext& context) { return std::make_unique<TensorTable>(context); }

}  // namespace chassis
