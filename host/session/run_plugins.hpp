// The plugins of a run: found, checked and loaded as [plugins] says, and made into instances with their options.
#pragma once

#include <memory>
#include <string>

#include "host/config/config.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"
#include "host/service/metrics.hpp"

namespace chassis {

// Which libraries [plugins] lets in. Throws a config error for a pin that is none, and for a lock that is missing.
LoadPolicy load_policy(const Settings& settings);

class RunPlugins {
 public:
  // Finds them; loads none. `config` and `metrics` outlive it.
  RunPlugins(const Config& config, MetricsStore& metrics, PluginIndex index, LoadPolicy policy);

  PluginRegistry& registry() { return registry_; }
  HostServices& services() { return services_; }
  // An activated instance of the member that the slot names, with the options beside it.
  std::unique_ptr<Instance> create(const std::string& slot_key, const std::string& kind, const std::string& id);

 private:
  const Config& config_;
  HostServices services_;
  PluginRegistry registry_;
};

}  // namespace chassis
