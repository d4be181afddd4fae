// Compares the fields of a program with those of the data, and copies batches to the device.
#include "host/session/fields.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/service/memory.hpp"

namespace chassis {

void check_fields(const Program& program) {
  const Field given{GraphValueType::kInt32, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME}};
  std::string all;
  for (const std::string_view name : kBatchFields) all += (all.empty() ? "" : ", ") + std::string(name);
  for (const auto& [name, field] : program.fields) {
    if (std::find(kBatchFields.begin(), kBatchFields.end(), name) == kBatchFields.end())
      throw plugin_error("the model takes the field '" + name + "' of a batch, which the data cannot give")
          .hint("fields: " + all + ", each " + program.field_text(given));
    if (field != given)
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
    Tensor tensor = Tensor::empty(field.shape, Dtype::i32, device);
    tensor.copy_from(Tensor::borrow(const_cast<int32_t*>(field.values.data()), field.shape, Dtype::i32));
    fields[name] = std::move(tensor);
  }
  return fields;
}

Fields empty_fields(const Program& program, int64_t num_rows, int64_t seq_len, Device device) {
  const MemoryTag tag(MemoryCategory::kData);
  const int64_t shape[] = {num_rows, seq_len};
  Fields fields;
  for (const std::string& name : field_names(program)) fields[name] = Tensor::empty(shape, Dtype::i32, device);
  return fields;
}

uint64_t step_data_bytes(const Program& program, const Settings& settings, const BatchSizes& sizes) {
  const int64_t num_positions = sizes.micro_batch_size * sizes.num_microbatches * settings.train.seq_len;
  return static_cast<uint64_t>(num_positions) * program.fields.size() * sizeof(int32_t) *
         (settings.data.prefetch ? 2 : 1);
}

int64_t vocab_size(const Program& program) {
  const auto dim = program.find_dim("vocab");
  return dim ? program.dims[*dim].size : 0;
}

}  // namespace chassis
