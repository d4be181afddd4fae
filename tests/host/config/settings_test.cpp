#include "host/config/settings.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "host/base/json.hpp"
#include "host/config/config.hpp"
#include "host/config/keys.hpp"
#include "host/config/settings_reader.hpp"
#include "host/config/toml_file.hpp"
#include "tests/host/config/example.hpp"

namespace chassis {
namespace {

std::string table_of(const std::string& key) { return key.substr(0, key.rfind('.') + 1); }

TEST(Settings, AgreeWithTheSchemaInKeysTypesAndOrder) {
  std::vector<std::string> expected;
  for (const TableSpec& table : host_schema().tables)
    for (const OptionSpec& key : table.keys)
      expected.push_back(
          fmt::format("{}{}{}: {}", table.name, table.name.empty() ? "" : ".", key.name, type_text(key.type)));
  const TomlValue one_of_each =
      parse_toml("[[data.train]]\n[[data.eval]]\n[[eval.generate]]\n[[parallel]]\n[[swap]]\n", "a.toml");
  std::vector<ReadKey> read;
  const auto settings = read_settings(one_of_each, "a.toml", nullptr, &read);
  std::vector<std::string> found;
  for (const ReadKey& key : read) found.push_back(fmt::format("{}: {}", without_indexes(key.key), type_text(key.type)));
  EXPECT_EQ(found, expected);
  // The members of a table are in the order of its keys, so no two of the same type are swapped.
  for (size_t i = 1; i < read.size(); ++i) {
    if (table_of(read[i - 1].key) != table_of(read[i].key)) continue;
    EXPECT_LT(read[i - 1].member, read[i].member) << read[i].key;
  }
}

TEST(Settings, KnowTheirKeyTheirPositionAndWhoSetThem) {
  const Config config = load_whole(load_config_text(kExample, "a.toml", {"run.seed=7"}));
  const Settings& s = config.settings();
  EXPECT_EQ(*s.train.seq_len, 512);
  EXPECT_EQ(s.train.seq_len.key(), "train.seq_len");
  EXPECT_EQ(s.train.seq_len.where().text(), "a.toml:11:11");
  EXPECT_TRUE(s.train.seq_len.by_user());
  EXPECT_EQ(s.run.seed.where().text(), "command line 'run.seed=7'");
  EXPECT_TRUE(s.run.seed.by_user());
  EXPECT_EQ(*s.run.device, "auto");
  EXPECT_FALSE(s.run.device.by_user());
  EXPECT_EQ(s.data.train[0].path.key(), "data.train.0.path");
  EXPECT_EQ(s.data.train[0].where().text(), "a.toml:14:1");
  EXPECT_FALSE(s.data.train[0].weight.is_set());
  // A setting that is not written down has the position of the nearest table that is, or of the file.
  EXPECT_EQ(s.train.task.where().text(), "a.toml:10:2");
  EXPECT_EQ(s.eval.every_steps.where().text(), "a.toml");
  EXPECT_EQ(s.parallel.key(), "parallel");
  EXPECT_EQ(s.parallel.where().text(), "a.toml");
  EXPECT_FALSE(s.parallel.by_user());
}

TEST(Settings, ItemsOfListsAndTablesHavePositions) {
  const std::string hash = "\"sha256:" + std::string(64, 'a') + "\"";
  const std::string text = kExample + "[freeze]\npatterns = [\"norm\",\n  \"embed\"]\n[plugins.pin]\nadamw = " + hash +
                           "\n\"x.y\" = " + hash + "\n";
  const Config config = load_whole(load_config_text(text, "a.toml", {}));
  const Settings& s = config.settings();
  EXPECT_EQ(s.freeze.patterns.where_of("1").text(), "a.toml:25:3");
  EXPECT_EQ(s.freeze.patterns.key_of("1"), "freeze.patterns.1");
  EXPECT_EQ(s.plugins.pin.where_of("adamw").text(), "a.toml:27:9");
  // A dotted key finds nothing of its name in the tree.
  EXPECT_EQ(s.plugins.pin.where_of("x.y").text(), s.plugins.pin.where().text());
}

TEST(Settings, ErrorsAboutThemHaveTheirPosition) {
  const Config config = load_config_text(kExample, "a.toml", {});
  const Settings& s = config.settings();
  EXPECT_STREQ(config_error(s.train.seq_len, "too long").what(), "a.toml:11:11: too long");
  const Error cause = storage_error("no space").hint("free some");
  EXPECT_STREQ(error_at(s.optimizer, cause).what(), "a.toml:16:2: no space\nhint: free some");
  EXPECT_EQ(error_at(s.optimizer, cause).code(), ExitCode::kStorage);
}

TEST(Settings, ReadingOneThatIsNotSetIsABrokenInvariant) {
  const Config config = load_whole(load_config_text(kExample, "a.toml", {}));
  try {
    static_cast<void>(*config.settings().recompute.blocks);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kInternal);
    EXPECT_STREQ(e.what(), "the configuration has no 'recompute.blocks'");
  }
}

TEST(Settings, ReadingOneThatIsInvalidThrowsTheFindings) {
  const Config config = load_config_text("[train]\nseq_len = \"x\"\n", "a.toml", {});
  try {
    static_cast<void>(*config.settings().train.seq_len);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(e.what()).find("a.toml:2:11: train.seq_len must be an integer"), std::string::npos);
  }
}

TEST(Settings, AreReadFromMalformedTreesToo) {
  for (const char* text : {"data.train = [1, \"x\"]\n", "quant = { plugin = 3 }\n", "parallel = 1\nmesh = []\n",
                           "model = { config = 3 }\nkernels = { plugins = 1 }\n"})
    EXPECT_NO_THROW(load_config_text(text, "a.toml", {}).settings()) << text;
}

}  // namespace
}  // namespace chassis
