#include "host/config/read.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "host/base/file.hpp"
#include "tests/host/config/example.hpp"

namespace chassis {
namespace {

class ExtendsTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "chassis_extends_test";
    std::filesystem::remove_all(folder_);
    create_directories(folder_ + "/base");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { write_file_atomic(folder_ + "/" + name, text); }
  std::string error_of(const std::string& name) {
    try {
      read_config_file(folder_ + "/" + name);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kConfig);
      std::string text = e.what();
      for (size_t at; (at = text.find(folder_ + "/")) != std::string::npos;) text.erase(at, folder_.size() + 1);
      return text;
    }
    return "nothing";
  }
  std::string folder_;
};

TEST_F(ExtendsTest, MergesDeeplyAndReplacesArrays) {
  write("base/a.toml", "[run]\nname = \"a\"\nseed = 1\n[[data.train]]\npath = \"1\"\n[[data.train]]\npath = \"2\"\n");
  write("b.toml", "extends = [\"base/a.toml\"]\n[run]\nseed = 2\n[[data.train]]\npath = \"3\"\n");
  const Value tree = read_config_file(folder_ + "/b.toml");
  EXPECT_EQ(tree.find("run")->find("name")->string, "a");
  EXPECT_EQ(tree.find("run")->find("seed")->integer, 2);
  EXPECT_EQ(tree.find("data")->find("train")->children.size(), 1u);
  EXPECT_EQ(tree.find("run")->find("name")->origin.where.text(), folder_ + "/base/a.toml:2:8");
  EXPECT_EQ(tree.find("extends"), nullptr);
}

TEST_F(ExtendsTest, LaterFilesWinAndPathsAreRelativeToTheFile) {
  write("base/deep.toml", "x = 1\ny = 1\nz = 1\n");
  write("base/a.toml", "extends = [\"deep.toml\"]\ny = 2\n");
  write("base/b.toml", "extends = [\"deep.toml\"]\nz = 3\n");
  write("c.toml", "extends = [\"base/a.toml\", \"base/b.toml\"]\n");
  const Value tree = read_config_file(folder_ + "/c.toml");
  EXPECT_EQ(tree.find("x")->integer, 1);
  EXPECT_EQ(tree.find("y")->integer, 1);
  EXPECT_EQ(tree.find("z")->integer, 3);
}

TEST_F(ExtendsTest, MissingFilesAndCyclesHaveAPosition) {
  write("a.toml", "x = 1\nextends = [\"none.toml\"]\n");
  EXPECT_EQ(error_of("a.toml"), "a.toml:2:12: cannot open 'none.toml': No such file or directory");
  write("b.toml", "extends = [\"base/c.toml\"]\n");
  write("base/c.toml", "extends = [\"../b.toml\"]\n");
  EXPECT_EQ(error_of("b.toml"), "base/c.toml:1:12: extends 'b.toml', which extends this file: a cycle");
  write("d.toml", "extends = \"a.toml\"\n");
  EXPECT_EQ(error_of("d.toml"), "d.toml:1:11: extends must be a list of strings, not a string (\"a.toml\")");
  write("e.toml", "extends = [3]\n");
  EXPECT_EQ(error_of("e.toml"), "e.toml:1:12: extends must be a list of strings; 3 is an integer");
  EXPECT_EQ(error_of("base"), "'base' is a directory, not a configuration file");
  write("f.toml", "extends = [\"a.toml\"\nx = 1");
  EXPECT_EQ(error_of("f.toml").substr(0, 28), "f.toml:2:1: not valid TOML: ");
}

Value with_overrides(const std::vector<std::string>& overrides) {
  Value root = read_config_text("[run]\nname = \"x\"\n[[data.train]]\npath = \"a\"\n", "a.toml");
  for (const std::string& text : overrides) apply_override(root, text, host_schema());
  return root;
}

std::string override_error(const std::string& text) {
  try {
    with_overrides({text});
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing";
}

TEST(Overrides, AreTomlValuesOrBareWords) {
  const Value root =
      with_overrides({"a.int=3", "a.float=1e-3", "a.text='quoted'", "a.word=models/Llama-3", "a.list=[1, 2]",
                      "a.table={x=1}", "a.empty=", "a.equals=b=c", "a.\"dotted.key\"=true"});
  EXPECT_EQ(toml_text(*root.find("a")),
            "{ int = 3, float = 0.001, text = \"quoted\", word = \"models/Llama-3\", list = [1, 2], table = { x = 1 }, "
            "empty = \"\", equals = \"b=c\", \"dotted.key\" = true }");
}

TEST(Overrides, IndexArraysAndAppendOne) {
  const Value root =
      with_overrides({"data.train.0.path=b", "data.train.1.path=c", "data.eval.0.path=d", "parallel.0.plugin=z"});
  EXPECT_EQ(toml_text(*root.find("data")), R"({ train = [{ path = "b" }, { path = "c" }], eval = [{ path = "d" }] })");
  EXPECT_EQ(toml_text(*root.find("parallel")), R"([{ plugin = "z" }])");
}

TEST(Overrides, WithoutAFormAreErrors) {
  EXPECT_EQ(override_error("run.name"),
            "command line 'run.name': an override has the form key=value\nhint: for example run.max_steps=100");
  EXPECT_EQ(override_error("=3").substr(0, 48), "command line '=3': an override has the form key=");
  EXPECT_EQ(override_error("run..x=3").substr(0, 54), "command line 'run..x=3': an override has the form key=");
  EXPECT_EQ(override_error("run.name.x=3"), "command line 'run.name.x=3': run.name is a string, not a table");
  EXPECT_EQ(override_error("data.train.2.path=x"),
            "command line 'data.train.2.path=x': data.train has 1 items: index 2 is too large");
  EXPECT_EQ(override_error("data.train.path=x"),
            "command line 'data.train.path=x': data.train is a list: its items are called data.train.0, data.train.1, "
            "…, not 'path'");
  EXPECT_EQ(override_error("log.sinks=[console]").substr(0, 64),
            "command line 'log.sinks=[console]': [console] is not a TOML valu");
  EXPECT_EQ(override_error("extends=[\"x\"]"), "command line 'extends=[\"x\"]': extends belongs into a file");
}

TEST(Overrides, AreTypedByTheSchema) {
  EXPECT_EQ(load_whole(load_config_text(kExample, "a.toml", {"run.name=123"})).get_string("run.name"), "123");
  EXPECT_EQ(load_whole(load_config_text(kExample, "a.toml", {"run.name=2024-01-01"})).get_string("run.name"),
            "2024-01-01");
  EXPECT_EQ(load_whole(load_config_text(kExample, "a.toml", {"optimizer.lr=1"})).get_double("optimizer.lr"), 1.0);
  EXPECT_EQ(what_is_wrong(kExample, {"train.seq_len=many"}),
            "command line 'train.seq_len=many': train.seq_len must be an integer, not a string (\"many\")");
  EXPECT_EQ(what_is_wrong(kExample, {"run.seeed=1"}),
            "command line 'run.seeed=1': unknown key 'run.seeed' (did you mean 'seed'?)");
}

}  // namespace
}  // namespace chassis
