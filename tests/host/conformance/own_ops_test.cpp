// The check that a plugin's own ops mix only the dims that its model declares.
#include "host/conformance/own_ops.hpp"

#include <gtest/gtest.h>

#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

std::string own_failures(const std::string& ops, const std::string& more = "") {
  test::LoadedPlugins plugins({CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR});
  const Program program = plugins.record_model("own_ops", "{\"ops\": [" + ops + "]" + more + "}");
  EXPECT_TRUE(has_own_ops(program));
  const std::vector<OpsProvider> providers = {plugins.ops("own_ops")};
  std::string text;
  for (const std::string& failure : own_op_failures(program, providers)) text += failure + "\n";
  return text;
}

constexpr const char* kOps = "\"shift\", \"center\", \"center_keys\", \"z_loss\", \"place\", \"gain\"";

TEST(OwnOpConformance, PassesOpsThatDeclareWhatTheyMixOrNothing) {
  EXPECT_EQ(own_failures(kOps), "");
  EXPECT_EQ(own_failures(kOps, ", \"declares\": false"), "");
}

TEST(OwnOpConformance, FindsADimThatIsMixedInSpiteOfTheDeclaration) {
  const std::string text = own_failures(kOps, ", \"lies\": true");
  EXPECT_HAS(text, "op trial/shift 'shift' of block 'layer' declares that it does not mix 'T', but element ");
  EXPECT_HAS(text, "op trial/center 'center' of block 'layer' declares that it does not mix 'ffn', but element ");
  EXPECT_HAS(text, " for all of it, and ");
  EXPECT_HAS(text, "'head_dim'");
  EXPECT_EQ(text.find("trial/relu2"), std::string::npos) << text;
  EXPECT_EQ(text.find("trial/gain"), std::string::npos) << text;
  EXPECT_EQ(text.find("trial/place"), std::string::npos) << text;
}

}  // namespace
}  // namespace chassis
