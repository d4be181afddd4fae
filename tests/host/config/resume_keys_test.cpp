#include "host/config/resume_keys.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

const SettingTexts kFsdp2 = {{"parallel.0.plugin", "\"fsdp2\""}, {"parallel.0.reduce_dtype", "\"auto\""}};

SettingTexts with(SettingTexts settings, const std::string& key, const std::string& text) {
  settings[key] = text;
  return settings;
}

TEST(ResumeKeys, MayChangeIfResultsDoNotDependOnThem) {
  for (const char* key : {"run.max_steps", "log.every_steps", "mesh.dp_shard", "recompute.mode", "data.train.0.path",
                          "eval.generate.0.path", "eval.generate.1.score"})
    EXPECT_TRUE(may_change_on_resume(key, {}, {})) << key;
  for (const char* key : {"run.seed", "optimizer.lr", "precision.reduce", "kernels.aten.x", "data.train.0.weight"})
    EXPECT_FALSE(may_change_on_resume(key, {}, {})) << key;
}

TEST(ResumeKeys, OptionsOfAStrategyThatStaysAreDifferences) {
  EXPECT_FALSE(
      may_change_on_resume("parallel.0.reduce_dtype", kFsdp2, with(kFsdp2, "parallel.0.reduce_dtype", "\"bf16\"")));
  EXPECT_FALSE(may_change_on_resume("parallel.0.reduce_every_microbatch", kFsdp2,
                                    with(kFsdp2, "parallel.0.reduce_every_microbatch", "false")));
  const SettingTexts versioned = with(kFsdp2, "parallel.0.plugin", "\"fsdp2@0.1.0\"");
  EXPECT_FALSE(may_change_on_resume("parallel.0.reshard_to", kFsdp2, with(versioned, "parallel.0.reshard_to", "2")));
}

TEST(ResumeKeys, OptionsMayChangeWithTheStrategyButNotDtypes) {
  const SettingTexts zero = {{"parallel.0.plugin", "\"zero\""}, {"parallel.0.stage", "3"}};
  const SettingTexts in_bf16 = with(kFsdp2, "parallel.0.reduce_dtype", "\"bf16\"");
  EXPECT_TRUE(may_change_on_resume("parallel.0.plugin", zero, kFsdp2));
  EXPECT_TRUE(may_change_on_resume("parallel.0.stage", zero, kFsdp2));
  EXPECT_TRUE(may_change_on_resume("parallel.0.reduce_dtype", zero, kFsdp2)) << "auto";
  EXPECT_TRUE(may_change_on_resume("parallel.0.reduce_dtype", {}, kFsdp2)) << "auto";
  EXPECT_FALSE(may_change_on_resume("parallel.0.reduce_dtype", zero, in_bf16));
  EXPECT_FALSE(may_change_on_resume("parallel.0.reduce_dtype", in_bf16, zero));
  EXPECT_FALSE(may_change_on_resume("parallel.0.reduce_dtype", {}, in_bf16));
}

}  // namespace
}  // namespace chassis
