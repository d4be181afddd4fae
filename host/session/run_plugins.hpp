// The plugins of a run: finds, checks and loads them according to [plugins], and creates instances with their options.
#pragma once

#include <memory>
#include <string>
#include <utility>

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
  // The libraries and services of `other`, with the options of another configuration, which outlives it.
  RunPlugins(const RunPlugins& other, const Config& config) : config_(config), shared_(other.shared_) {}

  PluginRegistry& registry() { return shared_->registry; }
  HostServices& services() { return shared_->services; }
  // An activated instance of the slot's member, with the options of its table.
  std::unique_ptr<Instance> create(const std::string& slot_key, const std::string& kind, const std::string& id);

 private:
  struct Shared {
    Shared(uint64_t seed, MetricsStore& metrics, PluginIndex index, LoadPolicy policy)
        : services(seed, metrics), registry(std::move(index), std::move(policy), services) {}
    HostServices services;
    PluginRegistry registry;
  };

  const Config& config_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace chassis
