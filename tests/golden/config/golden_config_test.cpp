// Errors of configurations that are found without loading plugins; only the options of one optimizer are known.
#include "host/config/config.hpp"
#include "tests/golden/golden.hpp"

namespace chassis {
namespace {

const std::vector<OptionSpec> kAdamOptions = {
    {.name = "betas",
     .type = OptionType::kFloatList,
     .default_json = "[0.9, 0.999]",
     .min = 0,
     .max = 1,
     .doc = "decay"},
    {.name = "eps", .type = OptionType::kFloat, .default_json = "1e-8", .min = 0, .doc = "added to the root"}};

std::string refusal(const std::string& file, const std::vector<std::string>& overrides) {
  try {
    Config config = load_config(file, overrides);
    for (const PluginSlot& slot : config.plugin_slots()) {
      if (slot.plugin == "adamw") config.check_plugin_options(slot.key, slot.plugin, kAdamOptions);
    }
    config.finish();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig) << file;
    return e.what();
  }
  return "";
}

TEST(GoldenConfig, BrokenConfigurationsAreRefusedWithTheExpectedMessages) {
  expect_golden_refusals(CHASSIS_TEST_SOURCE_DIR "/tests/golden/config", refusal);
}

}  // namespace
}  // namespace chassis
