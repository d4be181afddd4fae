// Adds the plugin to its errors.
#include "host/compile/model_plugin.hpp"

#include "host/base/error.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/text_sink.hpp"

namespace chassis {

ModelPlugin::ModelPlugin(Instance& instance)
    : instance_(&instance), table_(instance.interface<chassis_model_t>(CHASSIS_MODEL_ID)) {
  instance.require(CHASSIS_MODEL_ID, {{"configure", table_.configure != nullptr},
                                      {"record", table_.record != nullptr},
                                      {"config", table_.config != nullptr}});
}

void ModelPlugin::configure(const std::string& config_json) const {
  instance_->call("configure", [&](auto* self) { return table_.configure(self, str_of(config_json)); });
}

std::string ModelPlugin::configure_refusal(const std::string& config_json) const {
  chassis_status_t* status =
      call_plugin([&] { return table_.configure(instance_->get("configure"), str_of(config_json)); });
  if (status == nullptr) return "";
  const std::string text = status_text(status);
  status_release(status);
  return text.empty() ? "it gave no reason" : text;
}

chassis_status_t* ModelPlugin::record(const chassis_builder_t* builder) const {
  return guarded([&] {  // names the plugin
    instance_->call("record", [&](auto* self) { return table_.record(self, builder); });
  });
}

std::string ModelPlugin::config() const {
  TextSink sink;
  instance_->call("config", [&](auto* self) { return table_.config(self, sink.get()); });
  return sink.take();
}

DiskLayout ModelPlugin::disk_mapping(const ParameterTable& parameters) const {
  try {
    return record_disk_mapping(parameters, [&](const chassis_disk_sink_t* sink) -> chassis_status_t* {
      if (!table_.disk_mapping) return nullptr;
      return call_plugin([&] { return table_.disk_mapping(instance_->get("disk_mapping"), sink); });
    });
  } catch (const Error& error) {
    throw Error(error.code(), error.where(), instance_->label() + ": " + error.message()).hint(error.hint_text());
  }
}

int64_t ModelPlugin::max_positions() const {
  if (!table_.max_positions) return 0;
  return instance_->call("max_positions", [&](auto* self) { return table_.max_positions(self); });
}

}  // namespace chassis
