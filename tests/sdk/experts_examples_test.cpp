// The examples of mixtures of experts keep the contracts of their kinds.
#include <gtest/gtest.h>

#include "host/conformance/model_checks.hpp"
#include "host/conformance/ops_checks.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

class ExpertsExamples : public testing::Test {
 protected:
  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_BINARY_DIR "/tests/sdk/plugins"}};
  const std::vector<OpsProvider> oracles_ = {plugins_.ops("reference"), plugins_.ops("naive")};
};

TEST_F(ExpertsExamples, TheLinearsInCAreThoseOfTheReference) {
  const ConformanceResult result = compare_with_oracles(plugins_.ops("grouped_c"), oracles_);
  EXPECT_EQ(result.failures, std::vector<std::string>());
  EXPECT_GE(result.num_compared, 5u);
}

TEST_F(ExpertsExamples, TheModelWithItsOwnRouterPasses) {
  const auto make = [&] { return plugins_.make("model", "router_cpp"); };
  std::string accepted;
  for (const std::string& config : sample_model_configs({"HashMoeForCausalLM"}))
    if (config.find("num_experts") != std::string::npos && configure_refusal(*make(), config).empty()) {
      accepted = config;
      break;
    }
  ASSERT_NE(accepted, "");
  const std::vector<OpsProvider> own = {plugins_.ops("router_cpp")};
  EXPECT_EQ(model_failures(make, accepted, oracles_, [&] { return own; }), std::vector<std::string>());
}

}  // namespace
}  // namespace chassis
