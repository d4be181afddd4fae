// A builder of version 1 that forwards every call, and a mapping by names alone.
#include "host/program/model_shim.hpp"

#include "chassis/tensor.h"
#include "host/base/error.hpp"
#include "host/plugin/text_sink.hpp"

namespace chassis {
namespace {

// Forwards to a builder of version 2.
class BuilderV1 {
 public:
  explicit BuilderV1(const chassis_builder_2_t& builder) : target_(builder) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.dim = [](auto* b, chassis_str_t name, int64_t size, chassis_dim_t* out) {
      return target(b)->dim(target(b), name, size, out);
    };
    table_.begin_block = [](auto* b, chassis_str_t name, chassis_block_t* out) {
      return target(b)->begin_block(target(b), name, out);
    };
    table_.end_block = [](auto* b) { return target(b)->end_block(target(b)); };
    table_.input = [](auto* b, chassis_str_t name, const chassis_dim_t* dims, uint32_t num_dims, chassis_value_t* out) {
      return target(b)->input(target(b), name, dims, num_dims, out);
    };
    table_.field = [](auto* b, chassis_str_t name, chassis_value_t* out) {
      const chassis_dim_t dims[] = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME};
      return target(b)->field(target(b), name, CHASSIS_DTYPE_I32, dims, 2, out);
    };
    table_.slot = [](auto* b, const chassis_slot_desc_t* desc, chassis_slot_t* out) {
      return target(b)->slot(target(b), desc, out);
    };
    table_.op = [](auto* b, const chassis_op_desc_t* desc, chassis_value_t* out) {
      return target(b)->op(target(b), desc, out);
    };
    table_.output = [](auto* b, chassis_str_t name, chassis_value_t value) {
      return target(b)->output(target(b), name, value);
    };
    table_.chain = [](auto* b, chassis_str_t name, chassis_str_t prefix, const chassis_block_t* blocks, uint32_t n) {
      return target(b)->chain(target(b), name, prefix, blocks, n);
    };
  }
  BuilderV1(const BuilderV1&) = delete;
  BuilderV1& operator=(const BuilderV1&) = delete;

  const chassis_builder_t* table() const { return &table_; }

 private:
  static const chassis_builder_2_t* target(const chassis_builder_t* b) {
    return &static_cast<const BuilderV1*>(b->impl)->target_;
  }

  const chassis_builder_2_t& target_;
  chassis_builder_t table_{};
};

}  // namespace

chassis_status_t* record_v1(const chassis_model_t& model, chassis_instance_t* self,
                            const chassis_builder_2_t& builder) {
  const BuilderV1 builder_v1(builder);
  return model.record(self, builder_v1.table());
}

DiskMapping map_v1(const chassis_model_t& model, Instance& instance, const ParameterTable& parameters) {
  // If the function is NULL, both names are equal.
  const auto mapped = [&instance](auto function, const std::string& name) {
    if (function == nullptr) return name;
    TextSink sink;
    instance.call("disk_name or parameter_name", [&](auto* self) { return function(self, str_of(name), sink.get()); });
    return sink.take();
  };
  std::map<std::string, std::vector<DiskPart>> parts;
  std::map<std::string, std::string> parameter_on_disk, name_of_parameter;
  for (const auto& p : parameters.all()) {
    const std::string on_disk = mapped(model.disk_name, p->name);
    if (on_disk.empty()) throw plugin_error("parameter '" + p->name + "' has no name on disk");
    if (const auto [it, is_new] = parameter_on_disk.emplace(on_disk, p->name); !is_new)
      throw plugin_error("parameters '" + it->second + "' and '" + p->name + "' have the same name on disk, '" +
                         on_disk + "'");
    parts[p->name] = {DiskPart::whole(on_disk, p->descriptor.global_shape)};
    name_of_parameter[p->name] = on_disk;
  }
  return {std::move(parts),
          {},
          parameters,
          [mapped, parameter_name = model.parameter_name, name_of_parameter](const std::string& in_file) {
            const std::string parameter = mapped(parameter_name, in_file);
            if (parameter.empty()) return parameter;
            const auto known = name_of_parameter.find(parameter);
            return known == name_of_parameter.end() ? in_file : known->second;
          }};
}

}  // namespace chassis
