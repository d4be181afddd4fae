// The text of `chassis schema`.
#include "host/config/schema_text.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"
#include "tests/host/config/example.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

std::string text_of(const std::string& key) {
  return schema_text(host_schema(), {{"optimizer", "adamw", "Adam with decoupled decay", adam_options()}}, key);
}

TEST(SchemaText, DescribesAKey) {
  EXPECT_EQ(text_of("train.seq_len"),
            "  train.seq_len\n      an integer, between 1 and 16777216, required\n      tokens per row\n");
  EXPECT_EQ(text_of("seq_len"), text_of("train.seq_len"));
}

TEST(SchemaText, DescribesATableWithItsPlugins) {
  const std::string text = text_of("optimizer");
  EXPECT_NE(text.find("[optimizer]: "), std::string::npos);
  EXPECT_NE(text.find("plugin \"adamw\" (optimizer): Adam with decoupled decay\n  betas\n"), std::string::npos) << text;
}

TEST(SchemaText, DescribesAnOptionOfAPlugin) {
  EXPECT_EQ(text_of("optimizer.eps"),
            "  optimizer.eps\n      a number, at least 0, default 1e-8, may change while a run trains (swap)\n      "
            "added to the root\n"
            "      an option of plugin \"adamw\"\n");
}

TEST(SchemaText, ListsEverything) {
  const std::string text = text_of("");
  for (const TableSpec& table : host_schema().tables) {
    if (is_unavailable(table.name)) continue;
    EXPECT_NE(text.find(table.name), std::string::npos);
  }
}

TEST(SchemaText, OmitsWhatIsNotAvailable) {
  const std::string text = text_of("");
  EXPECT_EQ(text.find("groups"), std::string::npos);
  try {
    text_of("freeze.groups");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).substr(0, 44), "freeze.groups is not available in this versi");
  }
}

TEST(SchemaText, AnswersTyposAndKeysOfOtherTrainers) {
  const auto error_of = [](const std::string& key) -> std::string {
    try {
      return text_of(key);
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(error_of("train.seq_lenn"),
            "there is no key, table or plugin 'train.seq_lenn'\nhint: did you mean 'train.seq_len'?");
  EXPECT_EQ(error_of("learning_rate"),
            "there is no key, table or plugin 'learning_rate'\nhint: known from HF Trainer: use optimizer.lr");
}

TEST(SchemaText, KnowsIndexesPluginsAndTheKeysOfAModel) {
  EXPECT_EQ(text_of("data.eval.0.path"), text_of("data.eval.path"));
  EXPECT_EQ(text_of("data.train.0"), text_of("data.train"));
  EXPECT_EQ(text_of("adamw").substr(0, 62), "plugin \"adamw\" (optimizer): Adam with decoupled decay\n  betas\n");
  EXPECT_NE(text_of("checkpoint.async").find("false, true or \"staged\", default false\n"), std::string::npos);
  const std::string text =
      schema_text(host_schema(), {{"model", "mine", "", {}, {{"hidden_size", "16"}}}}, "model.config");
  EXPECT_NE(text.find("as written in config.json"), std::string::npos) << text;
  EXPECT_NE(text.find("plugin \"mine\" reads, with these defaults\n      hidden_size = 16\n"), std::string::npos)
      << text;
}

TEST(SchemaText, FindsAPluginByItsTable) {
  const std::vector<PluginDoc> plugins = {{"sink", "pager", "calls people", {{.name = "number"}}, {}}};
  const std::string text = schema_text(host_schema(), plugins, "log.pager");
  EXPECT_HAS(text, "plugin \"pager\" (sink): calls people");
  EXPECT_HAS(text, "number");
  try {
    schema_text(host_schema(), plugins, "log.pagr");
    ADD_FAILURE() << "log.pagr is a table";
  } catch (const Error& error) {
    EXPECT_HAS(std::string(error.what()), "did you mean 'log.pager'?");
  }
}

}  // namespace
}  // namespace chassis
