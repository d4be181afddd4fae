// Compares the fields of a program with those of the data, and copies batches to the device.
#include "host/session/fields.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/batch_fields.hpp"
#include "host/base/error.hpp"
#include "host/service/memory.hpp"
#include "host/state/dtype.hpp"
#include "host/state/shape.hpp"

namespace chassis {

void check_fields(const Program& program) {
  for (const auto& [name, field] : program.fields) {
    const BatchFieldSpec* spec = find_batch_field(name);
    if (spec == nullptr)
      throw plugin_error("the model takes the field '" + name + "' of a batch, which the data cannot give")
          .hint("fields: " + batch_fields_text(program));
    if (const Field given = field_of(*spec); field != given)
      throw plugin_error("the model takes the field '" + name + "' as " + program.field_text(field) +
                         ", the data gives it as " + program.field_text(given));
  }
}

std::vector<std::string> field_names(const Program& program) {
  std::vector<std::string> names;
  for (const auto& [name, field] : program.fields) names.push_back(name);
  return names;
}

Fields to_fields(const Batch& batch, Device device) {
  MemoryTag tag(MemoryCategory::kData);
  Fields fields;
  for (const auto& [name, field] : batch.fields) {
    const auto dtype = static_cast<Dtype>(find_batch_field(name)->dtype);
    Tensor tensor = Tensor::empty(field.shape, dtype, device);
    tensor.copy_from(Tensor::borrow(const_cast<int32_t*>(field.values.data()), field.shape, dtype));
    fields[name] = std::move(tensor);
  }
  return fields;
}

namespace {

std::vector<int64_t> shape_of(const BatchFieldSpec& spec, int64_t num_rows, int64_t seq_len) {
  std::vector<int64_t> shape;
  for (const uint32_t dim : spec.dims) shape.push_back(dim == CHASSIS_DIM_BATCH ? num_rows : seq_len);
  return shape;
}

}  // namespace

Fields empty_fields(const Program& program, int64_t num_rows, int64_t seq_len, Device device) {
  const MemoryTag tag(MemoryCategory::kData);
  Fields fields;
  for (const auto& [name, field] : program.fields) {
    const BatchFieldSpec& spec = *find_batch_field(name);
    fields[name] = Tensor::empty(shape_of(spec, num_rows, seq_len), static_cast<Dtype>(spec.dtype), device);
  }
  return fields;
}

uint64_t step_data_bytes(const Program& program, const Settings& settings, const BatchSizes& sizes) {
  uint64_t bytes = 0;  // of a micro-batch
  for (const auto& [name, field] : program.fields) {
    const BatchFieldSpec& spec = *find_batch_field(name);
    bytes += static_cast<uint64_t>(numel(Shape(shape_of(spec, sizes.micro_batch_size, settings.train.seq_len))) *
                                   size_bytes(static_cast<Dtype>(spec.dtype)));
  }
  return bytes * static_cast<uint64_t>(sizes.num_microbatches) * (settings.data.prefetch ? 2 : 1);
}

int64_t vocab_size(const Program& program) {
  const auto dim = program.find_dim("vocab");
  return dim ? program.dims[*dim].size : 0;
}

}  // namespace chassis
