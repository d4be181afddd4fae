// The services that this host offers to plugins: one set of C tables per plugin instance.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "host/plugin/services.hpp"
#include "host/service/metrics.hpp"

namespace chassis {

class Communicator;
class PluginRegistry;

class HostServices final : public ServiceProvider {
 public:
  // `seed` is the run's, for the streams of chassis.rng. `metrics` outlives the instances.
  HostServices(uint64_t seed, MetricsStore& metrics) : seed_(seed), metrics_(metrics) {}

  // From now on all instances, including older ones, have chassis.comm; NULL removes it. Without a communicator, attach
  // throws for a plugin whose manifest requires chassis.comm.
  void set_communicator(Communicator* communicator) { communicator_ = communicator; }

  // The registry from which chassis.members opens members.
  void set_registry(PluginRegistry* registry) { registry_ = registry; }

  bool offers(std::string_view id) const override;
  void check_operators(const Manifest& manifest) const override;
  std::string torch_version() const override;
  std::unique_ptr<InstanceServices> attach(const InstanceContext& context) override;

 private:
  uint64_t seed_;
  MetricsStore& metrics_;
  Communicator* communicator_ = nullptr;
  PluginRegistry* registry_ = nullptr;
};

}  // namespace chassis
