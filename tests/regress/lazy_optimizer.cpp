// An optimizer with a fault: only rank 0 declares its second state, as if the other ranks had not created it yet.
#include <cstdlib>

#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Lazy final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "declares exp_avg_sq on rank 0 only, for tests";
  static const Options& options() {
    static const Options schema = {option("eps", 1e-8).doc("not used")};
    return schema;
  }
  using Optimizer::Optimizer;

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kStates[] = {element_state("exp_avg"), element_state("exp_avg_sq")};
    const char* rank = std::getenv("CHASSIS_RANK");
    return {kStates, rank == nullptr || rank[0] == '0' ? 2u : 1u};
  }
  void step(const OptimizerStep&) override {}
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Lazy)
