#include "host/config/weights_config.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {
namespace {

Config of_overrides(const std::vector<std::string>& overrides) {
  return load_config_text("schema_version = 1\n", "ckpt export", overrides, ConfigUse::kWeights);
}

TEST(WeightsConfig, IsThatOfTheSameOverrides) {
  const Config plain = weights_config({.model = "models/a"}, "ckpt export");
  const std::vector<std::string> overrides = {"model.path=models/a", "model.init=random", "run.device=cpu",
                                              "export.dtype=auto"};
  EXPECT_TRUE(plain.same_values(of_overrides(overrides)));
  EXPECT_EQ(plain.use(), ConfigUse::kWeights);
  EXPECT_EQ(plain.file(), "ckpt export");
  const Config full = weights_config({.model = "models/a",
                                      .adapter = "b",
                                      .adapter_plugin = "lora",
                                      .merges_adapter = true,
                                      .quant_plugin = "bnb4",
                                      .quant_options = {"quant.double_quant=true"},
                                      .dtype = "bf16",
                                      .format = "safetensors"},
                                     "ckpt export");
  EXPECT_TRUE(
      full.same_values(of_overrides({"model.path=models/a", "model.init=random", "run.device=cpu", "export.dtype=bf16",
                                     "adapter.plugin=lora", "adapter.path=b", "export.merge=true",
                                     "quant.double_quant=true", "quant.plugin=bnb4", "export.plugin=safetensors"})));
}

TEST(WeightsConfig, NamesTheValueInErrors) {
  const Config config = weights_config({.model = "a", .dtype = "fp7"}, "ckpt export");
  try {
    config.throw_if_problems();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.where().text(), "command line 'export.dtype=fp7'");
  }
}

TEST(WeightsConfig, TakesEveryPathAsItIs) {
  const Config config = weights_config({.model = "12"}, "ckpt export");
  EXPECT_EQ(*config.settings().model.path, "12");
  const Config listed = weights_config({.model = "[a]"}, "ckpt export");
  EXPECT_EQ(*listed.settings().model.path, "[a]");
}

}  // namespace
}  // namespace chassis
