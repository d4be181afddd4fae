// Results of tokenizers and optimizers are checked when they return, and errors name the plugin.
#include <gtest/gtest.h>

#include "host/base/hash.hpp"
#include "host/session/optimizer_driver.hpp"
#include "host/session/plugin_tokenizer.hpp"
#include "tests/host/program/cpu_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

constexpr const char* kTokenizer = "plugin 'unruly' 0.1.0 (tokenizer/misnumbering): ";
constexpr const char* kOptimizer = "plugin 'unruly' 0.1.0 (optimizer/misdeclaring)";

class PluginResults : public testing::Test {
 protected:
  PluginTokenizer tokenizer(const char* fault) {
    return PluginTokenizer(plugins_.make("tokenizer", "misnumbering", {{"fault", fault}}));
  }
  std::string refused_tokenizer(const char* fault) {
    return test::refusal([&] { tokenizer(fault); });
  }
  std::string refused_optimizer(const char* fault) {
    return test::refusal([&] {
      OptimizerDriver(plugins_.make("optimizer", "misdeclaring", {{"fault", fault}}), run_.parameters, 0.0);
    });
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
  test::CpuRun run_{test::SmallModel{}.program(), {plugins_.ops("reference")}};
};

TEST_F(PluginResults, AnInvalidVocabularyIsAnErrorOfTheTokenizer) {
  EXPECT_EQ(refused_tokenizer("none"), "");
  EXPECT_HAS(refused_tokenizer("no vocabulary"),
             std::string(kTokenizer) + "its vocabulary has -3 ids, expected 1 to 2147483647");
  EXPECT_HAS(refused_tokenizer("huge vocabulary"), "its vocabulary has 1099511627776 ids");
  EXPECT_HAS(refused_tokenizer("special id"),
             std::string(kTokenizer) + "eos_id is 10, expected -1 (none) or an id below 10");
  EXPECT_HAS(refused_tokenizer("no fingerprint"), std::string(kTokenizer) + "its fingerprint is empty");
}

TEST_F(PluginResults, AnIdOutsideOfTheVocabularyNamesTheTokenizerAndThePlace) {
  const auto said = [&](const char* fault) {
    const PluginTokenizer subject = tokenizer(fault);
    std::vector<int32_t> ids;
    return test::refusal([&] { subject.encode("ab\x1b", ids); });
  };
  EXPECT_EQ(said("none"), "");
  EXPECT_HAS(said("id"),
             std::string(kTokenizer) + "encode makes id 10 at place 1 of \"ab\\x1b\"; its vocabulary has 10 ids");
  EXPECT_HAS(said("negative id"), "encode makes id -1 at place 1");
  EXPECT_HAS(said("count"), std::string(kTokenizer) + "encode makes 1003 ids of 3 bytes, at most 64");
}

// It is part of the key by which tokens in the cache are found.
TEST_F(PluginResults, TheBuildOfATokenizerIsItsLibraryAndItsOptions) {
  const std::string build = tokenizer("none").build();
  EXPECT_HAS(build, sha256_file(CHASSIS_TEST_STUB_DIR "/unruly.so"));
  EXPECT_EQ(tokenizer("none").build(), build);
  EXPECT_NE(tokenizer("bytes").build(), build);
}

TEST_F(PluginResults, TooMuchTextIsAnErrorOfTheTokenizer) {
  const PluginTokenizer subject = tokenizer("bytes");
  const int32_t ids[] = {3};
  EXPECT_HAS(test::refusal([&] { subject.decode(ids); }), std::string(kTokenizer) + "decode makes ");
  EXPECT_EQ(tokenizer("none").decode(ids), "x");
}

TEST_F(PluginResults, AnInvalidStateSchemaIsAnErrorOfTheOptimizer) {
  const std::string second = std::string(kOptimizer) + ": state 1 ";
  EXPECT_EQ(refused_optimizer("none"), "");
  EXPECT_HAS(refused_optimizer("count"), std::string(kOptimizer) + " has 1000 states per parameter, at most 64");
  EXPECT_HAS(refused_optimizer("role"), second + "has no role, which names it on disk");
  EXPECT_HAS(refused_optimizer("same role"), second + "has the role 'exp_avg' of another state");
  EXPECT_HAS(refused_optimizer("size"),
             std::string(kOptimizer) + ": the description of state 1 has 0 bytes, expected at least ");
  EXPECT_HAS(refused_optimizer("path"), second + "has the role '../exp_avg', expected letters, digits and '_'");
  EXPECT_HAS(refused_optimizer("dtype"), second + "('other') has dtype 77");
  EXPECT_HAS(refused_optimizer("shape"),
             second + "('other') has shape 9, expected 1 (like the parameter), 2 (scalar) or 3 (per block)");
  EXPECT_HAS(refused_optimizer("granularity"), second + "('other') has granularity 4, expected 1, 2 or 3");
  EXPECT_HAS(refused_optimizer("block"), second + "('other') is cut in blocks of 0 elements, expected at least 1");
}

}  // namespace
}  // namespace chassis
