// Data files that plugins read: which plugin is used, the place of an error, checks of what it returns, and data sets
// of such files.
#include "host/text/plugin_rows.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "host/base/hash.hpp"
#include "host/data/data_files.hpp"
#include "host/data/prepare.hpp"
#include "host/data/record_hash.hpp"
#include "host/service/host_services.hpp"
#include "tests/host/data/rows_support.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using Texts = std::vector<std::string>;

constexpr const char* kLibrary = CHASSIS_TEST_STUB_DIR "/lines.so";

// The plugins of a folder. Only those with a pin read files, since the folder is not the program's own.
struct OfFolder {
  OfFolder(const std::string& folder, const std::map<std::string, std::string>& libraries) {
    LoadPolicy policy;
    for (const auto& [id, file] : libraries) policy.pins[id] = {sha256_file(file), {}};
    registry = std::make_unique<PluginRegistry>(PluginIndex({{folder, "test", true, {}}}), std::move(policy), services);
    services.set_registry(registry.get());
    rows = std::make_unique<PluginRows>(*registry);
  }
  MetricsStore metrics;
  HostServices services{0, metrics};
  std::unique_ptr<PluginRegistry> registry;
  std::unique_ptr<PluginRows> rows;
};

class PluginRowsTest : public testing::Test {
 protected:
  ~PluginRowsTest() override { ::unsetenv("NONCONFORMING"); }

  DataSetConfig set(const std::string& path, DataFormat format = DataFormat::kText) {
    DataSetConfig set = set_of(format, path);
    set.row_files = lines_.rows.get();
    return set;
  }
  // Rows until the error, which `message` receives.
  Texts read(const std::string& path, std::string* message = nullptr) {
    Texts texts;
    try {
      const DataSetConfig config = set(path);
      data_files(config);
      const auto reader = open_rows(path, config);
      uint64_t number = 0;
      for (RawRow row; reader->next(row);) {
        EXPECT_EQ(row.line, ++number);
        EXPECT_TRUE(row.is_table);
        texts.push_back(row.bytes);
      }
      EXPECT_EQ(reader->num_bytes_read(), File::open_read(path).size());
    } catch (const Error& error) {
      if (message == nullptr) throw;
      *message = error.what();
    }
    return texts;
  }
  std::string message_with(const char* fault, const std::string& path) {
    ::setenv("NONCONFORMING", fault, 1);
    std::string message;
    read(path, &message);
    return message;
  }

  TempFolder folder_;
  OfFolder lines_{CHASSIS_TEST_STUB_DIR, {{"lines", kLibrary}}};
};

TEST_F(PluginRowsTest, AreReadInOrderAndNumbered) {
  std::string content;
  Texts expected;
  for (int i = 0; i < 2000; ++i) expected.push_back("{\"text\":\"" + std::to_string(i) + "\"}");
  for (const std::string& row : expected) content += row + "\n";
  EXPECT_EQ(read(folder_.write("a.rows", content + "end\n")), expected);
  EXPECT_EQ(read(folder_.write("b.rows", "end\n")), Texts{});
}

TEST_F(PluginRowsTest, NameFileAndRowOfAnErrorAfterTheRowsBeforeIt) {
  std::string message;
  const std::string truncated = folder_.write("a.rows", "{\"text\":\"1\"}\n{\"text\":\"2\"}\n");
  EXPECT_EQ(read(truncated, &message).size(), 2u);
  EXPECT_HAS(message, truncated + ":3: column 'x': the file has no end");
  EXPECT_HAS(message, "copy or download the file again");
  read(folder_.write("b.rows", ""), &message);
  EXPECT_HAS(message, "b.rows: empty");
  read(folder_.write("c.rows", "x"), &message);
  EXPECT_HAS(message, "c.rows:1: not a file of rows");
}

TEST_F(PluginRowsTest, ChecksWhatThePluginGives) {
  const std::string path = folder_.write("a.rows", "{\"text\":\"1\"}\n{\"text\":\"2\"}\n{\"text\":\"3\"}\nend\n");
  EXPECT_HAS(message_with("too many", path), "plugin 'lines' 0.1.0: " + path + ": gives 2 rows to the sink of 1 that");
  EXPECT_HAS(message_with("wrong count", path), "gives 3 rows of a file that has 1");
  EXPECT_HAS(message_with("goes back", path), "has read 1 bytes, and before it ");
  EXPECT_HAS(message_with("never ends", path), " bytes of a file of ");
  EXPECT_HAS(message_with("negative count", path), "says that the file has -7 rows, expected a number or -1");
  EXPECT_HAS(message_with("line breaks", path), "row 1 has a line break between its values");
  EXPECT_HAS(message_with("another thread", path), "gives rows to the sink on another thread than the one that called");
  EXPECT_HAS(message_with("another code", folder_.path() + "/none.rows"), "none.rows");
}

TEST_F(PluginRowsTest, OfAWrongFormNameThePlugin) {
  const auto error_of_row = [&](const std::string& row) -> Error {
    const std::string path = folder_.write("a.rows", row + "\nend\n");
    const DataSetConfig config = set(path);
    data_files(config);
    const auto reader = open_rows(path, config);
    RawRow raw;
    EXPECT_TRUE(reader->next(raw));
    try {
      make_row_parser(config, 0)->parse(raw, path);
    } catch (const Error& error) {
      return error;
    }
    return internal_error("no error");
  };
  for (const auto& [row, text] :
       {std::pair("{\"text\":", "a.rows:1"), {"{\"text\":\"1\",\"text\":\"2\"}", "key \"text\" occurs twice"}}) {
    const Error error = error_of_row(row);
    EXPECT_EQ(error.code(), ExitCode::kPlugin);
    EXPECT_HAS(error.message(), "plugin 'lines' 0.1.0 gives a wrong row: ");
    EXPECT_HAS(error.message(), text);
  }
  EXPECT_EQ(error_of_row("{\"text\":1}").code(), ExitCode::kConfig) << "a value of the file";
}

TEST_F(PluginRowsTest, AreUsedOnlyFromTheProgramsFolderOrWithAPin) {
  EXPECT_TRUE(lines_.rows->reads("x/a.rows"));
  EXPECT_FALSE(lines_.rows->reads("x/a.jsonl"));
  EXPECT_EQ(lines_.rows->endings(), Texts{".rows"});
  const OfFolder without(CHASSIS_TEST_STUB_DIR, {});
  EXPECT_FALSE(without.rows->reads("x/a.rows"));
  EXPECT_EQ(without.rows->endings(), Texts{});
}

TEST_F(PluginRowsTest, AFileThatAnUnusedPluginNamesIsRefusedWithThePinThatUsesIt) {
  const OfFolder without(CHASSIS_TEST_STUB_DIR, {});
  DataSetConfig config = set(folder_.write("a.rows", "end\n"));
  config.row_files = without.rows.get();
  EXPECT_HAS(error_of([&] { open_rows(config.path, config); }),
             std::string("member rows/lines of ") + kLibrary +
                 " names *.rows; it is used if the configuration pins it: "
                 "[plugins] pin = { lines = \"sha256:" +
                 sha256_file(kLibrary));
}

// Ids are sorted by name, folders are not: "lines" comes before "more_lines".
TEST_F(PluginRowsTest, ThePluginOfAnEarlierFolderReadsFilesThatTwoPluginsName) {
  const std::string more = CHASSIS_TEST_STUB_DIR "/more_rows";
  for (const bool more_first : {true, false}) {
    std::vector<PluginFolder> folders = {{more, "test", true, {}}, {CHASSIS_TEST_STUB_DIR, "test", true, {}}};
    if (!more_first) std::swap(folders[0], folders[1]);
    LoadPolicy policy;
    policy.pins = {{"lines", {sha256_file(kLibrary), {}}}, {"more_lines", {sha256_file(more + "/more_lines.so"), {}}}};
    MetricsStore metrics;
    HostServices services{0, metrics};
    PluginRegistry registry(PluginIndex(folders), std::move(policy), services);
    services.set_registry(&registry);
    PluginRows rows(registry);
    EXPECT_EQ(rows.prepare("a.rows", {}).starts_with("more_lines "), more_first);
  }
}

TEST_F(PluginRowsTest, MakeADataSetLikeOtherFiles) {
  const std::string rows = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
  folder_.write("a.rows", rows + "end\n");
  folder_.write("b.jsonl", rows);
  folder_.write("c.md", "x");
  const DataSetConfig both = set(folder_.path());
  EXPECT_EQ(data_files(both).size(), 2u);
  const ByteTokenizer tokenizer;
  const PrepareOptions options{folder_.path() + "/cache"};
  const TokenStore of_rows = prepare_data_set(set(folder_.path() + "/a.rows"), &tokenizer, options);
  const TokenStore of_lines = prepare_data_set(set(folder_.path() + "/b.jsonl"), &tokenizer, options);
  EXPECT_EQ(of_rows.facts().num_documents, 2u);
  EXPECT_EQ(of_rows.facts().num_tokens, of_lines.facts().num_tokens);
  EXPECT_HAS(
      error_of([&] { prepare_data_set(set(folder_.write("d.rows", "{\"texts\":\"\"}\nend\n")), &tokenizer, options); }),
      "d.rows:1");
}

#ifdef CHASSIS_TEST_PARQUET
// Every format reads rows of a .parquet file as those of the same .jsonl file.
TEST_F(PluginRowsTest, OfParquetBecomeTheRecordsOfTheSameLines) {
  const OfFolder parquet(CHASSIS_TEST_PLUGIN_DIR, {{"parquet", CHASSIS_TEST_PLUGIN_DIR "/parquet.so"}});
  const std::string golden = CHASSIS_TEST_SOURCE_DIR "/tests/golden/parquet/reference";
  for (const DataFormat format : {DataFormat::kMessages, DataFormat::kTokens, DataFormat::kText, DataFormat::kAlpaca}) {
    DataSetConfig config = set(golden + ".parquet", format);
    config.row_files = parquet.rows.get();
    config.all_columns = true;
    if (format == DataFormat::kText) config.columns = {{"text", "completion"}};
    if (format == DataFormat::kAlpaca) config.columns = {{"instruction", "prompt"}, {"output", "completion"}};
    ASSERT_EQ(data_files(config).size(), 1u);
    const std::vector<RawRow> rows = rows_of(golden + ".parquet", config), lines = rows_of(golden + ".jsonl", config);
    ASSERT_EQ(rows.size(), 3u);
    const auto parser = make_row_parser(config, 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].bytes, lines[i].bytes);
      EXPECT_EQ(parser->parse(rows[i], "a.parquet").index(), parser->parse(lines[i], "a.jsonl").index());
    }
    // Nothing but the names of other columns is read.
    config.all_columns = false;
    data_files(config);
    const std::vector<RawRow> used = rows_of(golden + ".parquet", config);
    ASSERT_EQ(used.size(), 3u);
    for (size_t i = 0; i < used.size(); ++i)
      EXPECT_EQ(content_fraction(parser->parse(used[i], "a")), content_fraction(parser->parse(lines[i], "a")));
  }
  DataSetConfig config = set(golden + ".parquet", DataFormat::kSegments);
  config.row_files = parquet.rows.get();
  const ByteTokenizer tokenizer;
  EXPECT_HAS(error_of([&] { prepare_data_set(config, &tokenizer, {folder_.path() + "/cache"}); }),
             "reference.parquet:1: ");
}

// nul.parquet has the texts "one" and "t\0wo", where \0 is a NUL character.
TEST_F(PluginRowsTest, OfParquetMayHaveNulCharactersWhichAreCounted) {
  const OfFolder parquet(CHASSIS_TEST_PLUGIN_DIR, {{"parquet", CHASSIS_TEST_PLUGIN_DIR "/parquet.so"}});
  DataSetConfig config = set(CHASSIS_TEST_SOURCE_DIR "/tests/golden/parquet/nul.parquet");
  config.row_files = parquet.rows.get();
  ASSERT_EQ(data_files(config).size(), 1u);
  const std::vector<RawRow> rows = rows_of(config.path, config);
  ASSERT_EQ(rows.size(), 2u);
  const auto parser = make_row_parser(config, 0);
  EXPECT_EQ(std::get<TextRecord>(parser->parse(rows[0], "a.parquet")).text, "one");
  EXPECT_TRUE(parser->notes().changes.empty());
  EXPECT_EQ(std::get<TextRecord>(parser->parse(rows[1], "a.parquet")).text, std::string("t\0wo", 4));
  ASSERT_EQ(parser->notes().changes.size(), 1u);
  EXPECT_HAS(parser->notes().changes.begin()->first, "texts of \"text\" have NUL characters, which are kept");
}
#endif

}  // namespace
}  // namespace chassis
