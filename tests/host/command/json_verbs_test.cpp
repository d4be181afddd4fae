// --json of every verb that prints a table or a report, compared with its text.
#include <gtest/gtest.h>

#include "host/base/json.hpp"
#include "host/base/units.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using Words = std::vector<std::string>;

class JsonVerbs : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = std::make_unique<test::ScratchDirectory>();
    std::filesystem::copy(CHASSIS_TEST_SOURCE_DIR "/tests/golden/run/base", scratch_->path(),
                          std::filesystem::copy_options::recursive);
    test::write_text(*scratch_ / "eval.toml", "extends = [\"good.toml\"]\n[[data.eval]]\npath = \"corpus.txt\"\n");
    text({"train", "good.toml"});
    text({"train", "model.toml"});
    text({"train", "model.toml", "run.output_dir=other", "run.max_steps=2"});
  }
  static void TearDownTestSuite() { scratch_.reset(); }

  // Standard output alone.
  static std::string text(const Words& words, int exit_code = 0) {
    Words command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2> messages.txt", CHASSIS_TEST_BINARY_DIR "/bin/chassis"};
    command.insert(command.end(), words.begin(), words.end());
    const test::Outcome outcome = test::run_process(command, scratch_->path());
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output << messages();
    return outcome.output;
  }
  static std::string messages() { return test::text_of_file(*scratch_ / "messages.txt"); }
  // All of standard output is one document of this schema.
  static Json json(const std::string& name, Words words, int exit_code = 0) {
    words.push_back("--json");
    const Json document = parse_json(text(words, exit_code), name);
    EXPECT_EQ(document.items().begin().key(), "schema") << name;
    EXPECT_EQ(document["schema"], "chassis." + name + "/1");
    return document;
  }
  static std::string count(const Json& number) { return std::to_string(number.get<int64_t>()); }

  static std::unique_ptr<test::ScratchDirectory> scratch_;
};
std::unique_ptr<test::ScratchDirectory> JsonVerbs::scratch_;

TEST_F(JsonVerbs, EveryVerbThatPrintsATableHasIt) {
  for (const char* verb :
       {"check",        "plan",         "eval",          "init",           "schema",        "version",
        "report",       "data stats",   "data preview",  "ckpt ls",        "ckpt info",     "ckpt verify",
        "ckpt diff",    "ckpt prune",   "ckpt export",   "ckpt merge",     "ckpt quantize", "ckpt import-zero",
        "plugins list", "plugins info", "plugins check", "tokenizer train"}) {
    Words words;
    std::istringstream parts(std::string(verb) + " --help");
    for (std::string part; parts >> part;) words.push_back(part);
    EXPECT_HAS(text(words), "--json") << verb;
  }
}

TEST_F(JsonVerbs, Check) {
  const std::string shown = text({"check", "good.toml"});
  const Json check = json("check", {"check", "good.toml"});
  EXPECT_HAS(shown, "model       " + count(check["units"]) + " units, " +
                        count_text(check["parameters"].get<double>()) + " parameters, " +
                        count_text(check["trained"].get<double>()) + " trained\n");
  for (const char* mode : {"none", "selective", "full"})
    EXPECT_HAS(shown, "activations " + bytes_text(check["activation_bytes"][mode].get<uint64_t>()) +
                          " with recompute = " + mode + "\n");
  EXPECT_EQ(check["saving_proven"], true);
  EXPECT_FALSE(check.contains("graph"));
  const Json more = json("check", {"check", "good.toml", "--graph", "--resolved", "train.seq_len=8"});
  EXPECT_EQ(more["resolved"]["train"]["seq_len"], 8);
  EXPECT_HAS(more["graph"].get<std::string>(), "block layer (chain layers, 2 units)");
  const Json warned = json("check", {"check", "good.toml", "optimizer.lr=0"});
  EXPECT_EQ(warned["warnings"][0]["what"], "optimizer.lr");
  EXPECT_HAS(messages(), "trains nothing");
}

TEST_F(JsonVerbs, AnErrorPrintsNoDocument) {
  EXPECT_EQ(text({"check", "good.toml", "train.seq_len=-1", "--json"}, 2), "");
  EXPECT_HAS(messages(), "train.seq_len = -1");
  EXPECT_EQ(text({"ckpt", "ls", "nowhere", "--json"}, 7), "");
  EXPECT_EQ(text({"schema", "nothing", "--json"}, 2), "");
}

TEST_F(JsonVerbs, Eval) {
  const Json set = json("eval", {"eval", "eval.toml"})["sets"][0];
  char line[200];
  std::snprintf(line, sizeof line, "%s loss %.6f perplexity %.4f tokens %s\n", set["name"].get<std::string>().c_str(),
                set["loss"].get<double>(), set["perplexity"].get<double>(), count(set["tokens"]).c_str());
  EXPECT_EQ(text({"eval", "eval.toml"}), line);
}

TEST_F(JsonVerbs, DataStatsAndPreview) {
  const Json set = json("data_stats", {"data", "stats", "good.toml"})["sets"][0];
  EXPECT_HAS(text({"data", "stats", "good.toml"}), "  rows            " + count(set["rows"]) + "\n");
  const Json page = json("data_preview", {"data", "preview", "good.toml", "--rows", "1", "--html", "page.html"});
  EXPECT_EQ(page["line"], 1);
  EXPECT_TRUE(std::filesystem::exists(*scratch_ / "page.html"));
}

TEST_F(JsonVerbs, ListsAndDescribesCheckpoints) {
  const Json first = json("ckpt_ls", {"ckpt", "ls", "other"})["checkpoints"][0];
  const std::string list = text({"ckpt", "ls", "other"});
  EXPECT_HAS(list, first["name"].get<std::string>());
  EXPECT_HAS(list, bytes_text(first["bytes"].get<uint64_t>()));
  EXPECT_HAS(list, first["status"].get<std::string>());
  const Json info = json("ckpt_info", {"ckpt", "info", "other", "--tensors"});
  const std::string described = text({"ckpt", "info", "other", "--tensors"});
  EXPECT_HAS(described, ": step " + count(info["step"]) + ", format " + info["format"].get<std::string>());
  EXPECT_HAS(described, count(info["tensors"]) + " tensors, " + bytes_text(info["bytes"].get<uint64_t>()));
  const Json& box = info["boxes"].back();
  EXPECT_HAS(described, "  " + box["name"].get<std::string>() + "  " + box["dtype"].get<std::string>());
  EXPECT_HAS(described, "  " + box["crc32c"].get<std::string>());
  EXPECT_FALSE(json("ckpt_info", {"ckpt", "info", "other"}).contains("boxes"));
}

TEST_F(JsonVerbs, VerifiesAndComparesCheckpoints) {
  const Json good = json("ckpt_verify", {"ckpt", "verify", "model-run"});
  EXPECT_EQ(good["ok"], true);
  const Json& one = good["checkpoints"][0];
  EXPECT_HAS(text({"ckpt", "verify", "model-run"}),
             "ok " + one["path"].get<std::string>() + ": " + count(one["tensors"]) + " tensors, " +
                 bytes_text(one["bytes"].get<uint64_t>()) + " in " + count(one["files"]) + " files\n");
  EXPECT_EQ(json("ckpt_diff", {"ckpt", "diff", "model-run", "model-run"})["same"], true);
  const Json differs = json("ckpt_diff", {"ckpt", "diff", "model-run", "other"}, 1);
  EXPECT_EQ(differs["same"], false);
  EXPECT_HAS(text({"ckpt", "diff", "model-run", "other"}, 1),
             "tensors that differ: " + std::to_string(differs["differences"].size()) + "\n");
  EXPECT_EQ(differs["differences"][0]["difference"], "contents");

  std::filesystem::copy(*scratch_ / "other", *scratch_ / "bad", std::filesystem::copy_options::recursive);
  test::write_text(*scratch_ / "bad/checkpoints/step-000002/config.json", "[");
  const Json bad = json("ckpt_verify", {"ckpt", "verify", "bad"}, 7);
  EXPECT_EQ(bad["ok"], false);
  EXPECT_EQ(bad["checkpoints"].back()["state"], "damaged");
  EXPECT_HAS(bad["checkpoints"].back()["defects"][0].get<std::string>(), "config.json");
}

TEST_F(JsonVerbs, WritesAndDeletesCheckpoints) {
  const Json saved = json("ckpt_export", {"ckpt", "export", "model-run", "handed"});
  EXPECT_HAS(saved["path"].get<std::string>(), "handed");
  EXPECT_GT(saved["bytes"], 0);
  EXPECT_EQ(saved["resumable"], false);
  text({"train", "model.toml", "run.output_dir=long", "run.max_steps=3", "checkpoint.every_steps=1"});
  const Json pruned = json("ckpt_prune", {"ckpt", "prune", "long", "--keep-last", "1"});
  EXPECT_EQ(pruned["checkpoints"].size(), 1u);
  EXPECT_GE(pruned["deleted"].size(), 1u);
}

TEST_F(JsonVerbs, Plugins) {
  const Json list = json("plugins_list", {"plugins", "list"});
  const std::string shown = text({"plugins", "list"});
  ASSERT_GT(list["members"].size(), 1u);
  for (const Json& member : list["members"]) EXPECT_HAS(shown, member["path"].get<std::string>());
  const Json info = json("plugins_info", {"plugins", "info", "adamw", "--options"});
  const std::string described = text({"plugins", "info", "adamw", "--options"});
  EXPECT_HAS(described, "sha256:" + info["sha256"].get<std::string>());
  for (const Json& option : info["options"][0]["options"])
    EXPECT_HAS(described, "  " + option["name"].get<std::string>() + " = ");
  const Json checked = json("plugins_check", {"plugins", "check", "adamw", "--only", "static"});
  EXPECT_EQ(checked["conforms"], true);
}

TEST_F(JsonVerbs, Schema) {
  const Json all = json("schema", {"schema"});
  const std::string shown = text({"schema"});
  size_t num_keys = 0;
  for (const Json& table : all["tables"])
    for (const Json& key : table["keys"]) {
      ++num_keys;
      EXPECT_HAS(shown, "  " + key["name"].get<std::string>() + "\n");
    }
  EXPECT_GT(num_keys, 50u);
  const Json key = json("schema", {"schema", "train.seq_len"})["keys"][0];
  EXPECT_EQ(key["type"], "int");
  EXPECT_EQ(key["min"], 1.0);
  const Json plugin = json("schema", {"schema", "adamw"})["plugins"][0];
  EXPECT_EQ(plugin["kind"], "optimizer");
}

TEST_F(JsonVerbs, Version) {
  const Json version = json("version", {"version"});
  const std::string shown = text({"version"});
  EXPECT_EQ(shown.substr(0, shown.find("devices: ")), "chassis " + version["chassis"].get<std::string>() + "\nABI " +
                                                          version["abi"].get<std::string>() + "\nLibTorch " +
                                                          version["libtorch"].get<std::string>() + "\n");
  const Json& devices = version["devices"];
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0]["name"], "cpu");
  EXPECT_EQ(devices[0]["usable"], true);
  EXPECT_EQ(devices[1]["name"], "cuda");
  EXPECT_EQ(devices[1]["usable"], devices[1]["problem"].is_null());
  const std::string state = devices[1]["usable"].get<bool>() ? devices[1]["model"] : devices[1]["problem"];
  EXPECT_HAS(shown, "devices: the CPU; CUDA (" + state + ")");
  for (const Json& plugin : devices[1]["plugins"]) EXPECT_HAS(shown, plugin.get<std::string>());
}

TEST_F(JsonVerbs, Init) {
  std::filesystem::copy(*scratch_ / "model-run/final", *scratch_ / "model", std::filesystem::copy_options::recursive);
  std::string rows;
  for (int i = 0; i < 40; ++i) rows += "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n";
  test::write_text(*scratch_ / "ids.jsonl", rows);
  const Json made = json("init", {"init", "made.toml", "--model", "model", "--data", "ids.jsonl"});
  EXPECT_EQ(made["file"], "made.toml");
  EXPECT_EQ(made["task"], "pretrain");
  EXPECT_EQ(made["rows"], 40);
  EXPECT_TRUE(std::filesystem::exists(*scratch_ / "made.toml"));
}

}  // namespace
}  // namespace chassis
