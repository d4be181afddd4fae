#include "host/program/model_shim.hpp"

#include "chassis/tensor.h"
#include "host/base/error.hpp"
#include "host/plugin/text_sink.hpp"

namespace chassis {
namespace {

// A builder of the first version in front of one of the second.
class Front {
 public:
  explicit Front(const chassis_builder_2_t& builder) : to_(builder) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.dim = [](auto* b, chassis_str_t name, int64_t size, chassis_dim_t* out) {
      return to(b)->dim(to(b), name, size, out);
    };
    table_.begin_block = [](auto* b, chassis_str_t name, chassis_block_t* out) {
      return to(b)->begin_block(to(b), name, out);
    };
    table_.end_block = [](auto* b) { return to(b)->end_block(to(b)); };
    table_.input = [](auto* b, chassis_str_t name, const chassis_dim_t* dims, uint32_t num_dims, chassis_value_t* out) {
      return to(b)->input(to(b), name, dims, num_dims, out);
    };
    table_.field = [](auto* b, chassis_str_t name, chassis_value_t* out) {
      const chassis_dim_t dims[] = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME};
      return to(b)->field(to(b), name, CHASSIS_DTYPE_I32, dims, 2, out);
    };
    table_.slot = [](auto* b, const chassis_slot_desc_t* desc, chassis_slot_t* out) {
      return to(b)->slot(to(b), desc, out);
    };
    table_.op = [](auto* b, const chassis_op_desc_t* desc, chassis_value_t* out) {
      return to(b)->op(to(b), desc, out);
    };
    table_.output = [](auto* b, chassis_str_t name, chassis_value_t value) {
      return to(b)->output(to(b), name, value);
    };
    table_.chain = [](auto* b, chassis_str_t name, chassis_str_t prefix, const chassis_block_t* blocks, uint32_t n) {
      return to(b)->chain(to(b), name, prefix, blocks, n);
    };
  }
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  const chassis_builder_t* table() const { return &table_; }

 private:
  static const chassis_builder_2_t* to(const chassis_builder_t* b) { return &static_cast<const Front*>(b->impl)->to_; }

  const chassis_builder_2_t& to_;
  chassis_builder_t table_{};
};

}  // namespace

chassis_status_t* record_first(const chassis_model_t& model, chassis_instance_t* self,
                               const chassis_builder_2_t& builder) {
  const Front front(builder);
  return model.record(self, front.table());
}

DiskMapping map_first(const chassis_model_t& model, Instance& instance, const ParameterTable& parameters) {
  // NULL: names are equal.
  const auto mapped = [&instance](auto function, const std::string& name) {
    if (function == nullptr) return name;
    TextSink sink;
    instance.check(function(instance.get("disk_name or parameter_name"), str_of(name), sink.get()));
    return sink.take();
  };
  std::map<std::string, std::vector<DiskPart>> parts;
  std::map<std::string, std::string> parameter_on_disk, name_of_parameter;
  for (const auto& p : parameters.all()) {
    const std::string on_disk = mapped(model.disk_name, p->name);
    if (on_disk.empty()) throw plugin_error("parameter '" + p->name + "' has no name on disk");
    if (const auto [it, is_new] = parameter_on_disk.emplace(on_disk, p->name); !is_new)
      throw plugin_error("parameters '" + it->second + "' and '" + p->name + "' have one name on disk, '" + on_disk +
                         "'");
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
