// A model with a disk mapping trains, saves and loads like the same model without one.
#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

using test::Outcome;

class MappedModel : public test::ProgramRun {
 protected:
  MappedModel() {
    std::string toml = test::text_of_file(scratch_ / "run.toml");
    const size_t begin = toml.find("plugin = \"llama\""), end = toml.find("[tokenizer]");
    toml.replace(begin, end - begin, "");
    toml += "[checkpoint]\nevery_steps = 3\n[plugins]\npath = [\"" CHASSIS_TEST_STUB_DIR
            "\", \"" CHASSIS_TEST_PLUGIN_DIR "\"]\n";
    test::write_text(scratch_ / "run.toml", toml);
  }
  std::string run(const std::string& out, Words words, int exit_code = 0) {
    words.push_back("run.output_dir=" + out);
    const Outcome outcome = train(words);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }
  void ckpt(const std::string& words) {
    const Outcome outcome = shell("\"$CHASSIS\" ckpt " + words +
                                  " --plugin-path " CHASSIS_TEST_STUB_DIR " --plugin-path " CHASSIS_TEST_PLUGIN_DIR);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  static Words random(const std::string& member) {
    return {"model.plugin=" + member, "model.config={}", "run.max_steps=3"};
  }
  static Words from(const std::string& out, const std::string& member, int steps) {
    return {"model.plugin=" + member, "model.path=" + out + "/final", "run.max_steps=" + std::to_string(steps)};
  }
};

TEST_F(MappedModel, HasOtherFilesAndTheSameLosses) {
  run("plain", random("plain_files"));
  run("mapped", random("mapped_files"));
  EXPECT_EQ(losses("mapped"), losses("plain"));
  for (const char* name : {"\"h.1.gate_up\":{\"dtype\":\"F32\",\"shape\":[16,64]", "\"h.0.down.right\":", "\"mask\":"})
    EXPECT_HAS(model("mapped"), name);
  EXPECT_EQ(model("plain").find("\"h.1.gate_up\""), std::string::npos);

  run("plain2", from("plain", "plain_files", 2));
  run("mapped2", from("mapped", "mapped_files", 2));
  EXPECT_EQ(losses("mapped2"), losses("plain2"));

  // An export of a checkpoint gives the same file.
  ckpt("export mapped/checkpoints/step-000003 exported");
  EXPECT_TRUE(test::text_of_file(scratch_ / "exported/model.safetensors") == model("mapped"));
}

TEST_F(MappedModel, IsReadAndWrittenByShardsOfEachRank) {
  run("mapped", random("mapped_files"));
  std::string toml =
      test::text_of_file(scratch_ / "run.toml") + "[mesh]\ndp_shard = 2\n[[parallel]]\nplugin = \"fsdp2\"\n";
  test::write_text(scratch_ / "run.toml", toml);
  Words two = from("mapped", "mapped_files", 1);
  two.insert(two.end(), {"--nproc", "2", "optimizer.lr=1e-30", "train.micro_batch_size=1"});
  run("two", two);
  Words one = from("mapped", "mapped_files", 1);
  one.insert(one.end(), {"optimizer.lr=1e-30"});
  test::write_text(scratch_ / "run.toml", toml.substr(0, toml.find("[mesh]")));
  run("one", one);
  EXPECT_TRUE(model("two") == model("one"));
}

TEST_F(MappedModel, IsRefusedForAFieldThatTheDataCannotGive) {
  const std::string said =
      run("out", {"model.plugin=plain_files", "model.config={ field = \"lens\" }", "run.max_steps=1"}, 3);
  EXPECT_HAS(said, "the model takes the field 'lens' of a batch, which the data cannot give");
  EXPECT_HAS(said, "input_ids, labels, positions, document_ids");
}

}  // namespace
}  // namespace chassis
