// The plugins of a run: finds, checks and loads them according to [plugins], and creates instances with their options.
#pragma once

#include <memory>
#include <string>

#include "host/config/config.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"
#include "host/service/metrics.hpp"

namespace chassis {

// The libraries that [plugins] allows. Throws a config error for an invalid pin, and for a missing lock.
LoadPolicy load_policy(const Settings& settings);

class RunPlugins {
 public:
  // Loads no library. `config` and `metrics` outlive it.
  RunPlugins(const Config& config, MetricsStore& metrics, PluginIndex index, LoadPolicy policy);

  PluginRegistry& registry() { return registry_; }
  HostServices& services() { return services_; }
  // An activated instance of the slot's member, with the options of its table.
  std::unique_ptr<Instance> create(const std::string& slot_key, const std::string& kind, const std::string& id);

 private:
  const Config& config_;
  HostServices services_;
  PluginRegistry registry_;
};

}  // namespace chassis
