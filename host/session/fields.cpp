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
          .hint("fields: " + batch_fields_text());
    if (!is_given(program, field, *spec))
      throw plugin_error("the model takes the field '" + name + "' as " + program.field_text(field) +
                         ", the data gives it as " + field_text(*spec));
  }
}

std::vector<std::string> field_names(const Program& program) {
  std::vector<std::string> names;
  for (const auto& [name, field] : program.fields) names.push_back(name);
  return names;
}

NamedSizes largest_sizes(const Program& program, int64_t num_rows, int64_t seq_len) {
  const DimSizes sizes = DimSizes::largest(program, num_rows, seq_len);
  NamedSizes named;
  for (DimId dim = 0; dim < program.dims.size(); ++dim) named[program.dims[dim].name] = sizes.size_of(program, dim);
  return named;
}

Tensor to_tensor(const HostField& field, Device device) {
  Tensor tensor = Tensor::empty(field.shape(), field.dtype(), device);
  tensor.copy_from(Tensor::borrow(const_cast<std::byte*>(field.bytes().data()), field.shape(), field.dtype()));
  return tensor;
}

Fields to_fields(const Batch& batch, Device device) {
  MemoryTag tag(MemoryCategory::kData);
  Fields fields;
  for (const auto& [name, field] : batch.fields) fields[name] = to_tensor(field, device);
  return fields;
}

Fields empty_fields(const Program& program, int64_t num_rows, int64_t seq_len, Device device) {
  const MemoryTag tag(MemoryCategory::kData);
  Fields fields;
  const NamedSizes sizes = largest_sizes(program, num_rows, seq_len);
  for (const auto& [name, field] : program.fields) {
    const BatchFieldSpec& spec = *find_batch_field(name);
    fields[name] = Tensor::empty(field_shape(spec, sizes), static_cast<Dtype>(spec.dtype), device);
  }
  return fields;
}

uint64_t step_data_bytes(const Program& program, const Settings& settings, const BatchSizes& sizes) {
  const NamedSizes named = largest_sizes(program, sizes.micro_batch_size, settings.train.seq_len);
  uint64_t bytes = 0;  // of a micro-batch
  for (const auto& [name, field] : program.fields) {
    const BatchFieldSpec& spec = *find_batch_field(name);
    bytes += static_cast<uint64_t>(numel(Shape(field_shape(spec, named))) * size_bytes(static_cast<Dtype>(spec.dtype)));
  }
  return bytes * static_cast<uint64_t>(sizes.num_microbatches) * (settings.data.prefetch ? 2 : 1);
}

int64_t vocab_size(const Program& program) {
  const auto dim = program.find_dim("vocab");
  return dim ? program.dims[*dim].size : 0;
}

}  // namespace chassis
