// Reading of files and overrides into one tree: `extends`, limits, TOML errors.
#include "host/config/read.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

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
  const TomlValue tree = read_config_file(folder_ + "/b.toml");
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
  const TomlValue tree = read_config_file(folder_ + "/c.toml");
  EXPECT_EQ(tree.find("x")->integer, 1);
  EXPECT_EQ(tree.find("y")->integer, 1);
  EXPECT_EQ(tree.find("z")->integer, 3);
}

TEST_F(ExtendsTest, MissingFilesAndCyclesHaveAPosition) {
  write("a.toml", "x = 1\nextends = [\"none.toml\"]\n");
  EXPECT_EQ(error_of("a.toml"), "a.toml:2:12: cannot open 'none.toml': No such file or directory");
  write("b.toml", "extends = [\"base/c.toml\"]\n");
  write("base/c.toml", "extends = [\"../b.toml\"]\n");
  EXPECT_EQ(error_of("b.toml"), "base/c.toml:1:12: extends 'b.toml' makes a cycle: b.toml → base/c.toml → b.toml");
  write("d.toml", "extends = \"a.toml\"\n");
  EXPECT_EQ(error_of("d.toml"), "d.toml:1:11: extends must be a list of file names, not a string (\"a.toml\")");
  write("e.toml", "extends = [3]\n");
  EXPECT_EQ(error_of("e.toml"), "e.toml:1:12: extends must be a list of file names; 3 is an integer");
  write("g.toml", "extends = [\"a.toml\\u0000x\"]\n");
  EXPECT_EQ(error_of("g.toml"),
            "g.toml:1:12: extends must be a list of file names; \"a.toml\\u0000x\" is not a file name");
  EXPECT_EQ(error_of("base"), "cannot open 'base': it is a directory\nhint: give a regular file or a pipe");
  write("f.toml", "extends = [\"a.toml\"\nx = 1");
  EXPECT_EQ(error_of("f.toml").substr(0, 28), "f.toml:2:1: not valid TOML: ");
}

TEST_F(ExtendsTest, AreLimitedInDepthAndNumber) {
  for (int i = 0; i < 40; ++i)
    write("deep" + std::to_string(i) + ".toml", "extends = [\"deep" + std::to_string(i + 1) + ".toml\"]\n");
  EXPECT_EQ(error_of("deep0.toml"), "deep31.toml:1:12: extends 'deep32.toml': more than 32 files extend each other");
  for (int i = 0; i < 22; ++i) {
    const std::string next = "\"two" + std::to_string(i + 1) + ".toml\"";
    write("two" + std::to_string(i) + ".toml", "extends = [" + next + ", " + next + "]\n");
  }
  write("two22.toml", "x = 1\n");
  EXPECT_NE(error_of("two0.toml").find("has already read 256 files"), std::string::npos) << error_of("two0.toml");
  std::string many = "extends = [\"two22.toml\"";
  for (int i = 0; i < 20000; ++i) many += ", \"two22.toml\"";
  write("many.toml", many + "]\n");
  EXPECT_NE(error_of("many.toml").find("has already read 256 files"), std::string::npos) << error_of("many.toml");
}

TEST_F(ExtendsTest, AreRegularFilesOfAReasonableSize) {
  write("large.toml", std::string(2 << 20, '#'));
  EXPECT_EQ(error_of("large.toml"), "'large.toml' has 2 MiB; the maximum is 1 MiB");
  write("a.toml", "extends = [\"large.toml\"]\n");
  EXPECT_EQ(error_of("a.toml"), "a.toml:1:12: 'large.toml' has 2 MiB; the maximum is 1 MiB");
  write("b.toml", "extends = [\"/dev/zero\"]\n");
  EXPECT_EQ(error_of("b.toml"), "b.toml:1:12: cannot open '/dev/zero': it is a device\nhint: give a regular file");
  ASSERT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  write("c.toml", "extends = [\"fifo\"]\n");
  EXPECT_EQ(error_of("c.toml"), "c.toml:1:12: cannot open 'fifo': it is a FIFO\nhint: give a regular file");
}

std::string toml_error(const std::string& text) {
  try {
    read_config_text(text, "a.toml");
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing";
}

std::string repeated(const std::string& part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

TEST(Toml, IsRefusedIfItNestsTooDeeply) {
  const std::string parts = "a.toml:1:64: the key has too many parts: the maximum is 32";
  EXPECT_EQ(toml_error(repeated("a.", 20000) + "a = 1\n"), parts);
  EXPECT_EQ(toml_error("[" + repeated("a.", 20000) + "a]\n"),
            "a.toml:1:65: the key has too many parts: the maximum is 32");
  EXPECT_EQ(toml_error(repeated("'a.b'.", 20000) + "a = 1\n").substr(0, 9), "a.toml:1:");
  EXPECT_NE(toml_error("a = " + repeated("{a = ", 20000)).find("nested too deeply: the maximum is 32"),
            std::string::npos);
  EXPECT_NE(toml_error("\n\na = " + repeated("[", 20000)).find("a.toml:3:37: lists and tables are nested too deeply"),
            std::string::npos)
      << toml_error("\n\na = " + repeated("[", 20000));
  EXPECT_EQ(toml_error("[" + repeated("a.", 31) + "a]\nx = " + repeated("[", 32) + repeated("]", 32) + "\n"),
            "nothing");
}

TEST(Toml, BracketsInStringsAndCommentsAreNotNesting) {
  const std::string deep = repeated("[a.b.", 100);
  EXPECT_EQ(toml_error("# " + deep + "\na = \"" + deep + "\\\"" + deep + "\"\nb = '" + deep + "'\n"), "nothing");
  EXPECT_EQ(toml_error("a = \"\"\"\n\"" + deep + "\n" + deep + "\"\"\"\"\nb = '''" + deep + "'''\n"), "nothing");
  EXPECT_EQ(toml_error("a = [" + repeated("1.5, ", 5000) + "]\n"), "nothing");
  EXPECT_NE(toml_error("a = \"open\nb = " + repeated("[", 40)), "nothing");
}

TomlValue with_overrides(const std::vector<std::string>& overrides) {
  TomlValue root = read_config_text("[run]\nname = \"x\"\n[[data.train]]\npath = \"a\"\n", "a.toml");
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

TEST(Overrides, AreUtf8WithAtMost32Parts) {
  EXPECT_NE(override_error("run.name=\xff").find("command line 'run.name=\\xff': an override must be UTF-8 text"),
            std::string::npos)
      << override_error("run.name=\xff");
  EXPECT_NE(override_error(repeated("a.", 20000) + "a=1").find("the key has 20001 parts: the maximum is 32"),
            std::string::npos);
  EXPECT_NE(override_error("run.name=" + repeated("[", 20000)).find("the maximum is 32"), std::string::npos);
}

TEST(Overrides, AreTomlValuesOrBareWords) {
  const TomlValue root =
      with_overrides({"a.int=3", "a.float=1e-3", "a.text='quoted'", "a.word=models/Llama-3", "a.list=[1, 2]",
                      "a.table={x=1}", "a.empty=", "a.equals=b=c", "a.\"dotted.key\"=true"});
  EXPECT_EQ(toml_text(*root.find("a")),
            "{ int = 3, float = 0.001, text = \"quoted\", word = \"models/Llama-3\", list = [1, 2], table = { x = 1 }, "
            "empty = \"\", equals = \"b=c\", \"dotted.key\" = true }");
}

TEST(Overrides, IndexArraysAndAppendOneItem) {
  const TomlValue root =
      with_overrides({"data.train.0.path=b", "data.train.1.path=c", "data.eval.0.path=d", "parallel.0.plugin=z"});
  EXPECT_EQ(toml_text(*root.find("data")), R"({ train = [{ path = "b" }, { path = "c" }], eval = [{ path = "d" }] })");
  EXPECT_EQ(toml_text(*root.find("parallel")), R"([{ plugin = "z" }])");
}

TEST(Overrides, RemoveATableThatMayBeLeftOut) {
  const TomlValue root = with_overrides({"adapter.plugin=x", "adapter={}", "quant={plugin='y'}", "run={}"});
  EXPECT_EQ(root.find("adapter"), nullptr);
  EXPECT_EQ(toml_text(*root.find("quant")), R"({ plugin = "y" })");
  EXPECT_EQ(toml_text(*root.find("run")), "{}") << "the program needs this one";
}

TEST(Overrides, WithAWrongFormAreErrors) {
  EXPECT_EQ(override_error("run.name"),
            "command line 'run.name': an override has the form key=value\nhint: for example run.max_steps=100");
  EXPECT_EQ(override_error("=3").substr(0, 48), "command line '=3': an override has the form key=");
  EXPECT_EQ(override_error("run..x=3").substr(0, 54), "command line 'run..x=3': an override has the form key=");
  EXPECT_EQ(override_error("run.name.x=3"), "command line 'run.name.x=3': run.name is a string, not a table");
  EXPECT_EQ(override_error("data.train.2.path=x"),
            "command line 'data.train.2.path=x': data.train has 1 item: index 2 is too large");
  EXPECT_EQ(override_error("data.train.path=x"),
            "command line 'data.train.path=x': data.train is a list: its items are called data.train.0, data.train.1, "
            "…, not 'path'");
  EXPECT_EQ(override_error("log.sinks=[console]").substr(0, 64),
            "command line 'log.sinks=[console]': [console] is not a TOML valu");
  EXPECT_EQ(override_error("extends=[\"x\"]"), "command line 'extends=[\"x\"]': extends can be set only in a file");
}

TEST(Overrides, AreTypedByTheSchema) {
  const auto with = [](const std::string& override) {
    return load_whole(load_config_text(kExample, "a.toml", {override}));
  };
  EXPECT_EQ(*with("run.name=123").settings().run.name, "123");
  EXPECT_EQ(*with("run.name=2024-01-01").settings().run.name, "2024-01-01");
  EXPECT_EQ(*with("optimizer.lr=1").settings().optimizer.lr, 1.0);
  EXPECT_EQ(what_is_wrong(kExample, {"train.seq_len=many"}),
            "command line 'train.seq_len=many': train.seq_len must be an integer, not a string (\"many\")");
  EXPECT_EQ(what_is_wrong(kExample, {"run.seeed=1"}),
            "command line 'run.seeed=1': unknown key 'run.seeed' (did you mean 'seed'?)");
}

}  // namespace
}  // namespace chassis
