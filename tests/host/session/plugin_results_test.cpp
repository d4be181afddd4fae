// Results of tokenizers and optimizers are checked when they return, and errors name the plugin.
#include <gtest/gtest.h>

#include <map>

#include "host/base/hash.hpp"
#include "host/session/placed_optimizer.hpp"
#include "host/text/plugin_tokenizer.hpp"
#include "tests/support/cpu_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

constexpr const char* kTokenizer = "plugin 'unruly' 0.1.0 (tokenizer/misnumbering): ";
constexpr const char* kOptimizer = "plugin 'unruly' 0.1.0 (optimizer/misdeclaring)";

class PluginResults : public testing::Test {
 protected:
  PluginTokenizer tokenizer(const char* fault) {
    return PluginTokenizer(plugins_.make("tokenizer", "misnumbering", {{"fault", fault}}));
  }
  PluginTokenizer second(const char* fault) {
    return PluginTokenizer(plugins_.make("tokenizer", "misencoding", {{"fault", fault}}));
  }
  std::string refused_tokenizer(const char* fault) {
    return test::refusal([&] { tokenizer(fault); });
  }
  std::string refused_optimizer(const char* fault) {
    return test::refusal([&] {
      OptimizerSchema(plugins_.make("optimizer", "misdeclaring", {{"fault", fault}}), run_.parameters, 0.0);
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
  EXPECT_HAS(said("count"), std::string(kTokenizer) + "encode makes 1003 ids of the text, at most 64");
}

// The build is part of the key under which tokens are cached.
TEST_F(PluginResults, TheBuildOfATokenizerIsItsLibraryAndItsOptions) {
  const std::string build = tokenizer("none").build();
  EXPECT_HAS(build, sha256_file(CHASSIS_TEST_STUB_DIR "/unruly.so"));
  EXPECT_EQ(tokenizer("none").build(), build);
  EXPECT_NE(tokenizer("bytes").build(), build);
}

// Otherwise an unchanged fingerprint would give tokens of another vocabulary.
TEST_F(PluginResults, TheBuildOfATokenizerChangesWithItsFiles) {
  const test::ScratchDirectory folder;
  const auto build = [&](const std::string& content) {
    test::write_text(folder / "words.txt", content);
    return PluginTokenizer(plugins_.make("tokenizer", "words"), folder.path()).build();
  };
  const std::string the = build("the\n");
  EXPECT_HAS(the, " files:");
  EXPECT_NE(build("fox\n"), the);
  EXPECT_EQ(build("the\n"), the);
  test::write_text(folder / "README.md", "not read");
  EXPECT_EQ(build("the\n"), the);
}

TEST_F(PluginResults, TooMuchTextIsAnErrorOfTheTokenizer) {
  const PluginTokenizer subject = tokenizer("bytes");
  const int32_t ids[] = {3};
  EXPECT_HAS(test::refusal([&] { subject.decode(ids); }), std::string(kTokenizer) + "decode makes ");
  EXPECT_EQ(tokenizer("none").decode(ids), "x");
}

constexpr const char* kSecond = "plugin 'unruly' 0.1.0 (tokenizer/misencoding): ";

TEST_F(PluginResults, ATokenizerIsOpenedWithItsDirectory) {
  const std::string refusal = test::refusal([&] {
    PluginTokenizer(plugins_.make("tokenizer", "misencoding", {{"fault", "open"}}), "models/x");
  });
  EXPECT_HAS(refusal, std::string(kSecond) + "no tokenizer in 'models/x'");
  EXPECT_HAS(test::refusal([&] { second("bos flag"); }), "documents begin with bos_id, which it does not have");
  EXPECT_HAS(test::refusal([&] { second("unk"); }), "unk_id is 256, expected -1 (none) or an id below 256");
}

TEST_F(PluginResults, IdsAndOffsetsOfATokenizerAreChecked) {
  const auto said = [&](const char* fault) {
    const PluginTokenizer subject = second(fault);
    return test::refusal([&] { subject.encode_with_offsets("abcd"); });
  };
  EXPECT_EQ(said("none"), "");
  EXPECT_HAS(said("id"), std::string(kSecond) + "encode makes id 256 at place 2 of \"abcd\"; its vocabulary has 256");
  EXPECT_HAS(said("begin"), "it begins at byte 0, the one before it at byte 1");
  EXPECT_HAS(said("end"), "it covers bytes 2 to 5 of a text of 4");
  EXPECT_HAS(said("before begin"), "it covers bytes 2 to 1 of a text of 4");
}

TEST_F(PluginResults, SpecialTokensAreFoundAndDecodedOnRequest) {
  const PluginTokenizer subject = second("none");
  EXPECT_EQ(subject.encode_with_offsets("a!").ids, (std::vector<int32_t>{'a', 0}));
  EXPECT_EQ(subject.encode_with_offsets("a!", false).ids, (std::vector<int32_t>{'a', '!'}));
  EXPECT_EQ(subject.encode_with_offsets("a!").end, (std::vector<uint64_t>{1, 2}));
  const int32_t ids[] = {'a', 0};
  EXPECT_EQ(subject.decode(ids), "a");
  EXPECT_EQ(subject.decode(ids, true), "a!");
  EXPECT_TRUE(subject.token(0).special);
  EXPECT_TRUE(subject.token(1).added);
  EXPECT_TRUE(subject.token(2).unused);
  EXPECT_HAS(test::refusal([&] { subject.token(256); }), "token id 256 is outside the vocabulary of 256");
  EXPECT_EQ(subject.id_of("a"), 'a');
  EXPECT_EQ(subject.id_of("ab"), -1);
  EXPECT_HAS(test::refusal([&] { second("id_of").id_of("a"); }), "id_of \"a\" is 256, its vocabulary has 256 ids");
  EXPECT_HAS(test::refusal([&] { second("bytes").decode(ids); }), "decode makes 1048577 bytes of 2 ids, at most");
}

TEST_F(PluginResults, SpansOfAChatAreChecked) {
  const auto said = [&](const char* fault, bool spans = true) {
    const PluginTokenizer subject = second(fault);
    return test::refusal(
        [&] { subject.render({.messages_json = R"([{"role": "user"}, {"role": "assistant"}])", .spans = spans}); });
  };
  EXPECT_EQ(said("none"), "");
  EXPECT_HAS(said("span end"), std::string(kSecond) + "render passes span 0, bytes 2 to 11 of a text of 10; it is not");
  EXPECT_HAS(said("overlap"), "span 1, bytes 3 to 6 of a text of 10; the one before it ends at byte 4");
  EXPECT_HAS(said("message"), "its message is number 2 of 2");
  EXPECT_HAS(said("leaf"), "its leaf is 5, expected 1 to 4");
  EXPECT_HAS(said("no text"), "render passes 0 texts to the sink, expected 1");
  EXPECT_HAS(said("two texts"), "render passes 2 texts to the sink, expected 1");
  EXPECT_HAS(said("span before text"), "render passes a span before the text");
  EXPECT_HAS(said("spans", false), "render passes spans that are not wanted");
  EXPECT_HAS(said("refuses"), std::string(kSecond) + "roles must alternate");
  EXPECT_THROW(second("unproven").render({.messages_json = "[]", .spans = true}), ChatSpansUnproven);
  EXPECT_HAS(test::refusal([&] { tokenizer("none").render({}); }), "renders no chat templates");
}

TEST_F(PluginResults, AVocabularyIsTrainedFromTextsIntoFiles) {
  std::map<std::string, std::string> files;
  const auto train = [&](const char* id, const char* fault, bool fails = false) {
    const auto instance = plugins_.make("tokenizer", id, {{"fault", fault}});
    std::vector<std::string> texts = {"one", "", "two"};
    size_t next = 0;
    train_vocabulary(
        *instance, {.vocab_size = 300},
        [&](std::string_view& text) {
          if (fails) throw config_error("data.txt:3: not UTF-8");
          return next < texts.size() ? text = texts[next++], true : false;
        },
        [&](const std::string& name, std::string_view content) { files[name] = content; });
  };
  train("misencoding", "none");
  EXPECT_EQ(files, (std::map<std::string, std::string>{{"vocabulary", "300|one||two"}}));
  EXPECT_HAS(test::refusal([&] { train("misencoding", "no files"); }), std::string(kSecond) + "train makes no file");
  EXPECT_HAS(test::refusal([&] { train("misencoding", "path"); }), "train makes a file '../vocabulary'");
  EXPECT_HAS(test::refusal([&] { train("misencoding", "twice"); }), "train makes the file 'vocabulary' twice");
  EXPECT_EQ(test::refusal([&] { train("misencoding", "none", true); }), "data.txt:3: not UTF-8");
  EXPECT_HAS(test::refusal([&] { train("misnumbering", "none"); }), "trains no vocabulary");
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
  EXPECT_HAS(refused_optimizer("initial"), second + "('other') starts at nan, expected a finite value");
  EXPECT_HAS(refused_optimizer("block"), second + "('other') is cut in blocks of 0 elements, expected at least 1");
}

}  // namespace
}  // namespace chassis
