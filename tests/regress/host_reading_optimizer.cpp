// An optimizer that reads a parameter's memory on the host, wherever it is, for simulated_device_test.cpp.
#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class HostReading final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "reads memory of the device on the host, for tests";
  explicit HostReading(const Host& host) : Optimizer(host) {}

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override { return {}; }
  void step(const OptimizerStep& step) override {
    first_ = *static_cast<const volatile float*>(step.param(0).view().data);
  }

 private:
  float first_ = 0.0f;
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", HostReading)
