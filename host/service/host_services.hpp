// The services of this host as plugins see them: one set of C tables per plugin instance.
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
  // `seed` is the run's; streams of chassis.rng depend on it. `metrics` outlives the instances.
  HostServices(uint64_t seed, MetricsStore& metrics) : seed_(seed), metrics_(metrics) {}

  // From now on chassis.comm is there for instances, also those made before; NULL takes it away. Without one a plugin
  // whose manifest requires it gets no instance.
  void set_communicator(Communicator* communicator) { communicator_ = communicator; }

  // Likewise chassis.members.
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
