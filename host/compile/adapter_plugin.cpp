// Calls the functions of an adapter, and adds the plugin to its errors.
#include "host/compile/adapter_plugin.hpp"

#include "host/base/error.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/text_sink.hpp"

namespace chassis {

AdapterPlugin::AdapterPlugin(Instance& instance)
    : instance_(&instance), table_(instance.interface<chassis_adapter_t>(CHASSIS_ADAPTER_ID)) {
  instance.require(CHASSIS_ADAPTER_ID, {{"configure", table_.configure != nullptr},
                                        {"extend", table_.extend != nullptr},
                                        {"config", table_.config != nullptr}});
}

std::string AdapterPlugin::id() const { return instance_->id(); }

void AdapterPlugin::configure(const std::string& config_json) const {
  instance_->call("configure", [&](auto* self) { return table_.configure(self, str_of(config_json)); });
}

bool AdapterPlugin::trains(const chassis_adapter_parameter_t& parameter) const {
  if (table_.parameter == nullptr) return false;
  uint32_t trained = 0;
  instance_->call("parameter", [&](auto* self) { return table_.parameter(self, &parameter, &trained); });
  if (trained > 1)
    throw plugin_error(instance_->label() + ": parameter() sets trained to " + std::to_string(trained) +
                       ", expected 0 or 1");
  return trained == 1;
}

void AdapterPlugin::extend(const chassis_adapter_op_t& op, const chassis_adapter_builder_t& builder) const {
  instance_->call("extend", [&](auto* self) { return table_.extend(self, &op, &builder); });
}

void AdapterPlugin::finish() const {
  if (table_.finish != nullptr) instance_->call("finish", [&](auto* self) { return table_.finish(self); });
}

std::string AdapterPlugin::config(const std::string& base_path, const std::string& base_config_json) const {
  chassis_adapter_base_t base{};
  base.struct_size = sizeof(base);
  base.path = str_of(base_path);
  base.config_json = str_of(base_config_json);
  TextSink sink;
  instance_->call("config", [&](auto* self) { return table_.config(self, &base, sink.get()); });
  return sink.take();
}

void AdapterPlugin::merge(const chassis_adapter_merge_t& merge) const {
  CHASSIS_CHECK(can_merge(), "the adapter cannot be merged");
  instance_->call("merge", [&](auto* self) { return table_.merge(self, &merge); });
}

void AdapterPlugin::files(const chassis_adapter_files_t& files) const {
  CHASSIS_CHECK(has_files(), "the adapter does not place its parameters");
  instance_->call("files", [&](auto* self) { return table_.files(self, &files); });
}

}  // namespace chassis
