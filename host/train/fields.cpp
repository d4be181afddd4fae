#include "host/train/fields.hpp"

#include "host/service/memory.hpp"

namespace chassis {

Fields to_fields(const Batch& batch, Device device) {
  MemoryTag tag(MemoryCategory::kData);
  Fields fields;
  for (const auto& [name, field] : batch.fields) {
    Tensor tensor = Tensor::empty(field.shape, Dtype::i32, device);
    tensor.copy_from(Tensor::borrow(const_cast<int32_t*>(field.values.data()), field.shape, Dtype::i32));
    fields[name] = std::move(tensor);
  }
  return fields;
}

}  // namespace chassis
