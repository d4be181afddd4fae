// Values as the authors of models write them, and mistakes in them.
#include "host/data/generation_config.hpp"

#include <gtest/gtest.h>

#include <string>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

class GenerationConfigFile : public testing::Test {
 protected:
  GenerationConfig read(const std::string& text) {
    test::write_text(file_, text);
    return read_generation_config(directory_.path());
  }
  std::string refusal(const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "accepted";
  }

  test::ScratchDirectory directory_;
  const std::string file_ = directory_ / "generation_config.json";
};

TEST_F(GenerationConfigFile, ADirectoryWithoutTheFileHasNoSettings) {
  const GenerationConfig config = read_generation_config(directory_.path());
  EXPECT_EQ(config.path, "");
  EXPECT_TRUE(config.eos_ids.empty());
  EXPECT_FALSE(config.do_sample);
  EXPECT_FALSE(config.temperature);
}

TEST_F(GenerationConfigFile, ReadsWhatLlamaInstructSays) {
  const GenerationConfig config =
      read(R"({"bos_token_id": 128000, "do_sample": true, "eos_token_id": [128001, 128008, 128009],
               "temperature": 0.6, "top_p": 0.9, "transformers_version": "4.45.0.dev0"})");
  EXPECT_EQ(config.path, file_);
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 0.6);
  EXPECT_EQ(config.top_p, 0.9);
  EXPECT_FALSE(config.top_k);
  EXPECT_TRUE(config.unused_keys.empty());
}

TEST_F(GenerationConfigFile, ReadsWhatQwenSays) {
  const GenerationConfig config = read(R"({"eos_token_id": 7, "top_k": 20, "repetition_penalty": 1.05,
                                           "max_new_tokens": 2048, "min_p": null, "do_sample": false})");
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{7});
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.repetition_penalty, 1.05);
  EXPECT_EQ(config.max_new_tokens, 2048);
  EXPECT_EQ(config.do_sample, false);
  EXPECT_FALSE(config.min_p);
}

TEST_F(GenerationConfigFile, IdsThatTheTokenizerLacksAreCounted) {
  log::reset_counted_warnings();
  EXPECT_EQ(stop_ids_of(read(R"({"eos_token_id": [2, 300, 301]})"), 300), std::vector<int32_t>{2});
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0], (std::pair<std::string, uint64_t>("generation_config.json: eos_token_id", 2)));
}

TEST_F(GenerationConfigFile, AnIdGivenTwiceIsOneStop) {
  EXPECT_EQ(read(R"({"eos_token_id": [2, 2, 3]})").eos_ids, (std::vector<int32_t>{2, 3}));
}

TEST_F(GenerationConfigFile, NamesKeysThatWouldChangeAnAnswer) {
  const GenerationConfig config = read(R"({"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 1,
                                           "typical_p": null, "forced_eos_token_id": 2})");
  EXPECT_EQ(config.unused_keys, (std::vector<std::string>{"num_beams", "no_repeat_ngram_size", "forced_eos_token_id"}));
}

TEST_F(GenerationConfigFile, RefusesValuesThatCannotBe) {
  EXPECT_HAS(refusal(R"({"temperature": "hot"})"), "'temperature' must be a number");
  EXPECT_HAS(refusal(R"({"temperature": -1})"), "'temperature' is -1, expected 0 or more");
  EXPECT_HAS(refusal(R"({"top_p": 1.5})"), "'top_p' is 1.5, expected 0 to 1");
  EXPECT_HAS(refusal(R"({"top_k": -2})"), "'top_k' is -2, expected 0 or more");
  EXPECT_HAS(refusal(R"({"repetition_penalty": 0})"), "expected a number above 0");
  EXPECT_HAS(refusal(R"({"max_new_tokens": 0})"), "expected 1 or more");
  EXPECT_HAS(refusal(R"({"eos_token_id": "</s>"})"), "'eos_token_id' is \"</s>\", expected an id");
  EXPECT_HAS(refusal(R"({"eos_token_id": [1, -1]})"), "expected an id or a list of ids");
  EXPECT_HAS(refusal(R"({"do_sample": 1})"), "'do_sample' must be true or false");
  EXPECT_HAS(refusal("[]"), "expected an object, found array");
  EXPECT_HAS(refusal("{"), "generation_config.json:1:");
}

}  // namespace
}  // namespace chassis
