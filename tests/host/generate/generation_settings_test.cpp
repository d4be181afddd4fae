// The settings of generation: those of the configuration, or else those of generation_config.json.
#include "host/generate/generation_settings.hpp"

#include <gtest/gtest.h>

#include "host/base/log.hpp"
#include "host/config/config.hpp"
#include "tests/host/data/support.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

class GenerationSettingsOf : public testing::Test {
 protected:
  GenerationSettingsOf() {
    log::reset_counted_warnings();
    file_.path = "m/generation_config.json";
  }

  GenerationSettings made(const std::string& generate = "") {
    const Config config = load_config_text(
        "schema_version = 1\n[model]\npath = \"m\"\n[tokenizer]\nplugin = \"t\"\n"
        "[generate]\n" +
            generate,
        "run.toml", {}, ConfigUse::kGeneration);
    EXPECT_EQ(config.num_problems(), 0u);
    return generation_settings(config.settings(), file_, ByteTokenizer(-1, 256));
  }

  GenerationConfig file_;
};

TEST_F(GenerationSettingsOf, NoFileMeansGreedyAndTheTokenizersEos) {
  file_ = {};
  const GenerationSettings settings = made();
  EXPECT_EQ(settings.options.sampling.temperature, 0.0);
  EXPECT_EQ(settings.options.max_new_tokens, 128);
  EXPECT_EQ(settings.options.stop_ids, std::vector<int32_t>{256});
  EXPECT_EQ(settings.options.vocab_size, 258);
  EXPECT_EQ(settings.from_file, "");
}

TEST_F(GenerationSettingsOf, WithoutAnEndIsCounted) {
  const Config config = load_config_text("schema_version = 1\n[model]\npath = \"m\"\n[tokenizer]\nplugin = \"t\"\n",
                                         "run.toml", {}, ConfigUse::kGeneration);
  generation_settings(config.settings(), {}, ByteTokenizer(-1, 256));
  EXPECT_TRUE(counted_warnings().empty());
  generation_settings(config.settings(), {}, ByteTokenizer(-1, -1));
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].first, "generation without an end");
}

TEST_F(GenerationSettingsOf, TheFileDecidesWhatTheUserLeavesOut) {
  file_.do_sample = true;
  file_.temperature = 0.6;
  file_.top_p = 0.9;
  file_.top_k = 20;
  file_.repetition_penalty = 1.05;
  file_.max_new_tokens = 2048;
  file_.eos_ids = {7, 9};
  const GenerationSettings settings = made();
  EXPECT_EQ(settings.options.sampling.temperature, 0.6);
  EXPECT_EQ(settings.options.sampling.top_p, 0.9);
  EXPECT_EQ(settings.options.sampling.top_k, 20);
  EXPECT_EQ(settings.options.sampling.repetition_penalty, 1.05);
  EXPECT_EQ(settings.options.max_new_tokens, 2048);
  EXPECT_EQ(settings.options.stop_ids, (std::vector<int32_t>{7, 9, 256}));
  EXPECT_EQ(settings.from_file,
            "m/generation_config.json: temperature 0.6, top_k 20, top_p 0.9, repetition_penalty 1.05, "
            "max_new_tokens 2048, stops at 7 9");
}

TEST_F(GenerationSettingsOf, TheUserDecidesFirst) {
  file_.do_sample = true;
  file_.temperature = 0.6;
  file_.top_p = 0.9;
  const GenerationSettings settings = made("temperature = 0.3\nmax_new_tokens = 5\nstop = [\"User:\"]\n");
  EXPECT_EQ(settings.options.sampling.temperature, 0.3);
  EXPECT_EQ(settings.options.sampling.top_p, 0.9);
  EXPECT_EQ(settings.options.max_new_tokens, 5);
  EXPECT_EQ(settings.stop_texts, std::vector<std::string>{"User:"});
  EXPECT_EQ(settings.from_file, "m/generation_config.json: top_p 0.9");
  EXPECT_EQ(made("temperature = 0.0\n").options.sampling.temperature, 0.0);
}

TEST_F(GenerationSettingsOf, WithoutDoSampleTheFileMeansGreedy) {
  file_.temperature = 0.6;
  EXPECT_EQ(made().options.sampling.temperature, 0.0) << "as transformers does";
  EXPECT_EQ(made().from_file, "");
  file_.do_sample = false;
  EXPECT_EQ(made().options.sampling.temperature, 0.0);
  EXPECT_HAS(made().from_file, "do_sample false, the most likely token");
  EXPECT_EQ(made("temperature = 0.3\n").options.sampling.temperature, 0.3);
}

TEST_F(GenerationSettingsOf, SamplesAtTemperatureOneIfTheFileNamesNone) {
  file_.do_sample = true;
  EXPECT_EQ(made().options.sampling.temperature, 1.0);
}

TEST_F(GenerationSettingsOf, WhatHasNoEffectIsCounted) {
  file_.unused_keys = {"num_beams"};
  made();
  const auto warnings = counted_warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].first, "generation_config.json: num_beams");
}

TEST_F(GenerationSettingsOf, ASettingOfSamplesIsRefusedWithoutThem) {
  for (const char* setting : {"top_p = 0.9\n", "top_k = 5\n", "min_p = 0.1\n"}) {
    try {
      made(setting);
      ADD_FAILURE() << setting;
    } catch (const Error& error) {
      EXPECT_HAS(std::string(error.what()), "has no effect at temperature 0");
    }
  }
  file_.do_sample = true;
  EXPECT_EQ(made("top_k = 5\n").options.sampling.top_k, 5);
}

}  // namespace
}  // namespace chassis
