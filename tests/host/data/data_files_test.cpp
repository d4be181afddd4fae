#include "host/data/data_files.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <vector>

#include "host/data/file_type.hpp"
#include "host/data/row_files.hpp"
#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

struct DataFiles : testing::Test {
  TempFolder folder;
  SkippedEntries skipped;

  void write_all(const Names& names) const {
    for (const std::string& name : names) {
      fs::create_directories(fs::path(folder.path() + "/" + name).parent_path());
      folder.write(name, "x");
    }
  }
  // Relative to the folder.
  Names found(const std::string& path, DataFormat format = DataFormat::kText) {
    Names names;
    skipped.clear();
    for (const std::string& file : data_files(set_of(format, path), &skipped))
      names.push_back(fs::relative(file, folder.path()).string());
    return names;
  }
  std::string message(const std::string& path, DataFormat format = DataFormat::kText) const {
    return error_of([&] { data_files(set_of(format, folder.path() + "/" + path)); });
  }
};

TEST_F(DataFiles, AreThoseOfAFolderByName) {
  write_all({"b.txt", "a.jsonl.gz", "c.csv.zst", "d.json", "notes.md", "e.tar.gz", "f.bin", ".git/x.txt", "README"});
  EXPECT_EQ(found(folder.path()), (Names{"a.jsonl.gz", "b.txt", "c.csv.zst", "d.json"}));
  EXPECT_EQ(to_text(skipped), ".bin 1, .md 1, .tar.gz 1, no extension 1, subfolder 1");
  EXPECT_EQ(found(folder.path(), DataFormat::kMessages), (Names{"a.jsonl.gz", "d.json"}));
}

TEST_F(DataFiles, AreNotThoseThatDescribeASavedDataset) {
  write_all({"one/data-00000-of-00001.arrow", "one/dataset_info.json", "one/state.json", "all/dataset_dict.json"});
  EXPECT_TRUE(contains(message("one"), "datasets.save_to_disk, whose .arrow files are not read"));
  EXPECT_TRUE(contains(message("one"), "one\").to_parquet("));
  EXPECT_TRUE(contains(message("all"), "all\")[\"train\"].to_parquet("));
}

TEST_F(DataFiles, HaveTheirIndexBesideThem) {
  write_all({"a.bin", "a.idx", "b.idx", "c.bin"});
  EXPECT_EQ(found(folder.path(), DataFormat::kTokens), (Names{"a.bin", "c.bin"}));
  EXPECT_EQ(to_text(skipped), ".idx 1");
}

TEST_F(DataFiles, MatchAPattern) {
  write_all({"a1.jsonl", "a2.jsonl", "a10.jsonl", "b1.jsonl", "a3.txt.md", "sub/a4.jsonl", "sub/deep/a5.jsonl",
             "other/a6.jsonl", ".hidden/a7.jsonl", ".a8.jsonl"});
  const std::string root = folder.path() + "/";
  EXPECT_EQ(found(root + "a*.jsonl"), (Names{"a1.jsonl", "a10.jsonl", "a2.jsonl"}));
  EXPECT_EQ(found(root + "a?.jsonl"), (Names{"a1.jsonl", "a2.jsonl"}));
  EXPECT_EQ(found(root + "[!b]1.jsonl"), (Names{"a1.jsonl"}));
  EXPECT_EQ(found(root + "[ab]1.*"), (Names{"a1.jsonl", "b1.jsonl"}));
  EXPECT_EQ(found(root + "*/a*.jsonl"), (Names{"other/a6.jsonl", "sub/a4.jsonl"}));
  EXPECT_EQ(found(root + "s*/deep/*"), (Names{"sub/deep/a5.jsonl"}));
  EXPECT_EQ(found(root + "**/*4.jsonl"), (Names{"sub/a4.jsonl"}));
  EXPECT_EQ(found(root + "sub/**"), (Names{"sub/a4.jsonl", "sub/deep/a5.jsonl"}));
  EXPECT_EQ(found(root + "**/a5.jsonl"), (Names{"sub/deep/a5.jsonl"}));
  EXPECT_TRUE(skipped.empty());
  EXPECT_EQ(found(root + "*").size(), 4u);
  EXPECT_EQ(to_text(skipped), ".md 1, subfolder 2");
}

TEST_F(DataFiles, MatchAPatternWithManyDoubleStarsInTime) {
  std::string deep;
  for (int i = 0; i < 30; ++i) deep += "d/";
  write_all({deep + "a.jsonl"});
  std::string stars, folders;
  for (int i = 0; i < 100; ++i) stars += "**/";
  for (int i = 0; i < 10; ++i) folders += "**/d/";
  EXPECT_EQ(found(folder.path() + "/" + stars + "a.jsonl"), (Names{deep + "a.jsonl"}));
  EXPECT_EQ(found(folder.path() + "/" + folders + "a.jsonl"), (Names{deep + "a.jsonl"})) << "30 over 10 ways";
}

TEST_F(DataFiles, MayHaveThePatternAsTheirName) {
  write_all({"a[1].txt", "a1.txt"});
  EXPECT_EQ(found(folder.path() + "/a[1].txt"), (Names{"a[1].txt"}));
}

TEST_F(DataFiles, RefuseAPatternWithoutAMatch) {
  write_all({"data/a.csv", "data/b.md", "data/c.md", "data/sub/x.txt"});
  const std::string none = message("data/*.jsonl");
  EXPECT_TRUE(
      contains(none, "data/*.jsonl\": no file matches; " + folder.path() + "/data has: .csv 1, .md 2, subfolder 1"));
  EXPECT_TRUE(contains(message("nowhere/x/*.jsonl"), "there is no folder " + folder.path() + "/nowhere/x"));
  EXPECT_TRUE(contains(message("data/*.md"), "what matches has no .jsonl, .json, .csv or .txt file; it has: .md 2"));
}

TEST_F(DataFiles, FollowLinks) {
  write_all({"data/a.txt", "elsewhere.txt", "more/b.txt"});
  const std::string link = folder.path() + "/data/b.txt";
  ASSERT_EQ(::symlink("nowhere", link.c_str()), 0);
  EXPECT_TRUE(contains(message("data"), "data/b.txt is a broken link"));
  EXPECT_TRUE(contains(message("data/*.txt"), "data/b.txt is a broken link"));
  fs::remove(link);
  ASSERT_EQ(::symlink("../elsewhere.txt", link.c_str()), 0);
  ASSERT_EQ(::symlink("../more", (folder.path() + "/data/linked").c_str()), 0);
  EXPECT_EQ(data_files(text_set(folder.path() + "/data")).size(), 2u);
  EXPECT_EQ(data_files(text_set(folder.path() + "/data/*.txt")).size(), 2u);
  EXPECT_EQ(data_files(text_set(folder.path() + "/data/*/*.txt")).size(), 1u);
  ASSERT_EQ(::symlink("..", (folder.path() + "/data/loop").c_str()), 0);
  EXPECT_EQ(data_files(text_set(folder.path() + "/data/**/*.txt")).size(), 2u);
}

TEST_F(DataFiles, RefusePathsThatCannotBeRead) {
  DataSetConfig set = text_set(folder.path() + "/nowhere.txt");
  set.where = {"run.toml", 12, 1};
  const std::string missing = error_of([&] { data_files(set); });
  EXPECT_TRUE(contains(missing, "run.toml:12:1"));
  EXPECT_TRUE(contains(missing, "data.train.0"));
  EXPECT_TRUE(contains(missing, "no such file"));
  write_all({"a.md", "b.txt", "c.bin", "d.tsv"});
  EXPECT_TRUE(contains(message("d.tsv"), "files that end in .tsv are not read by any format"));
  EXPECT_TRUE(contains(message("a.md"), "format \"text\" reads .jsonl, .json, .csv or .txt files"));
  EXPECT_TRUE(contains(message("b.txt", DataFormat::kTokens), "reads .jsonl, .json or .bin files"));
  EXPECT_TRUE(contains(message("c.bin"), "files of token ids have format = \"tokens\""));
  fs::create_directory(folder.path() + "/empty");
  EXPECT_TRUE(contains(message("empty"), "the folder has no"));
  const std::string pipe = folder.path() + "/pipe.txt", zero = folder.path() + "/zero.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(contains(message("pipe.txt"), "neither a file nor a folder"));
  ASSERT_EQ(::symlink("/dev/zero", zero.c_str()), 0);
  EXPECT_TRUE(contains(message("zero.jsonl", DataFormat::kTokens), "neither a file nor a folder"));
}

TEST_F(DataFiles, SayWhatToDoWithParquetWithoutItsPlugin) {
  write_all({"data/a.parquet", "data/b.parquet", "c.parquet.gz"});
  EXPECT_TRUE(contains(message("data/a.parquet"), "no plugin of kind \"rows\" that reads .parquet files"));
  const std::string folder_message = message("data", DataFormat::kMessages);
  EXPECT_TRUE(contains(folder_message, "data/a.parquet: no plugin of kind \"rows\""));
  EXPECT_TRUE(contains(folder_message, "to_json"));
  EXPECT_TRUE(contains(message("c.parquet.gz"), "unpack it"));
}

// Reads files of one ending, and remembers what was prepared.
struct FakeRowFiles : RowFiles {
  bool reads(std::string_view path) const override { return path.ends_with(".rows"); }
  Names endings() const override { return {".rows"}; }
  std::string prepare(const std::string& path, const UsedColumns&) override {
    prepared.push_back(fs::path(path).filename().string());
    return "fake";
  }
  std::unique_ptr<RowReader> open(const std::string&, const UsedColumns&) const override { return nullptr; }
  Names prepared;
};

TEST_F(DataFiles, OfPluginsAreFoundAndTheirPluginsPrepared) {
  write_all({"a.jsonl", "b.rows", "c.rows", "d.other"});
  FakeRowFiles row_files;
  for (const DataFormat format : {DataFormat::kMessages, DataFormat::kTokens, DataFormat::kText}) {
    row_files.prepared.clear();
    DataSetConfig config = set_of(format, folder.path());
    config.row_files = &row_files;
    EXPECT_EQ(data_files(config).size(), 3u);
    EXPECT_EQ(row_files.prepared, (Names{"b.rows", "c.rows"}));
  }
  DataSetConfig config = set_of(DataFormat::kMessages, folder.path() + "/d.other");
  config.row_files = &row_files;
  EXPECT_TRUE(contains(error_of([&] { data_files(config); }), "reads .jsonl, .json or .rows files"));
}

TEST(FileType, IsFoundByTheName) {
  EXPECT_EQ(file_type("x/a.jsonl"), FileType::kJsonLines);
  EXPECT_EQ(file_type("a.json.gz"), FileType::kJsonArray);
  EXPECT_EQ(file_type("a.csv.zst"), FileType::kCsv);
  EXPECT_EQ(file_type("a.bin"), FileType::kTokens);
  EXPECT_EQ(file_type("a.parquet"), FileType::kRows);
  for (const char* name : {"a.bin.gz", "a.parquet.gz", "a.gz", "a.txt.gz.gz", "a.tsv", "txt", ""})
    EXPECT_EQ(file_type(name), FileType::kUnknown) << name;
}

}  // namespace
}  // namespace chassis
