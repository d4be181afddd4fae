// The plugins of the build, through the real registry and the real services.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chassis/kind/ops.h"
#include "host/base/json.hpp"
#include "host/compile/compile.hpp"
#include "host/compile/model_plugin.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"

namespace chassis::test {

class LoadedPlugins {
 public:
  explicit LoadedPlugins(std::vector<std::string> folders = {CHASSIS_TEST_PLUGIN_DIR}) {
    std::vector<PluginFolder> found;
    for (std::string& folder : folders) found.push_back({std::move(folder), "test", true, {}});
    registry_ = std::make_unique<PluginRegistry>(PluginIndex(std::move(found)), LoadPolicy{}, services_);
  }

  // Activated, with the defaults of all options.
  std::unique_ptr<Instance> make(const std::string& kind, const std::string& id) { return registry_->open(kind, id); }
  // Activated; `options` holds every option.
  std::unique_ptr<Instance> make(const std::string& kind, const std::string& id, Json options) {
    auto instance = registry_->create(kind, id, std::move(options));
    instance->prepare();
    instance->activate();
    return instance;
  }
  Instance& create(const std::string& kind, const std::string& id) {
    instances_.push_back(make(kind, id));
    return *instances_.back();
  }
  OpsProvider ops(const std::string& id) {
    return ops_provider(create("ops", id));
  }
  // The recording that a model plugin makes for this config.json.
  Recording model(const std::string& id, const std::string& config_json) {
    const ModelPlugin model(create("model", id));
    model.configure(config_json);
    return {[model](const chassis_builder_t* builder) { return model.record(builder); }};
  }
  Program record_model(const std::string& id, const std::string& config_json) {
    return compile(model(id, config_json), {}).program();
  }
  MetricsStore& metrics() { return metrics_; }

 private:
  MetricsStore metrics_;
  HostServices services_{0, metrics_};
  std::unique_ptr<PluginRegistry> registry_;
  std::vector<std::unique_ptr<Instance>> instances_;
};

}  // namespace chassis::test
