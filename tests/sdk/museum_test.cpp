// Plugins of earlier ABI minors, built with their frozen headers, still run in this host.
#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

using test::Outcome;

constexpr const char* kPlugins = CHASSIS_TEST_BINARY_DIR "/tests/sdk/museum_plugins";

class Museum : public test::ProgramRun {
 protected:
  Outcome with_plugin(Words words) {
    words.insert(words.end(), {"--plugin-path", kPlugins});
    return train(words);
  }
};

// A model of chassis.model/1: trains, exports under the names of its disk mapping, and loads the export.
TEST_F(Museum, AModelOfTheFirstInterfaceTrainsAndLoads) {
  std::string toml = test::text_of_file(scratch_ / "run.toml");
  const size_t begin = toml.find("plugin = \"llama\""), end = toml.find("[tokenizer]");
  toml.replace(begin, end - begin, "plugin = \"tiny_model\"\nconfig = {}\n");
  test::write_text(scratch_ / "run.toml", toml);
  const Outcome first = with_plugin({"run.max_steps=4", "checkpoint.every_steps=2"});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  for (const char* name : {"disk.embed.weight", "disk.layers.1.mix.weight", "disk.head.weight"})
    EXPECT_HAS(model("out"), name);

  const Words from_final = {"model.path=out/final", "run.max_steps=1", "run.output_dir=again", "optimizer.lr=1e-30"};
  toml.replace(toml.find("plugin = \"tiny_model\"\nconfig = {}\n"), 34, "");
  test::write_text(scratch_ / "run.toml", toml);
  const Outcome again = with_plugin(from_final);
  ASSERT_EQ(again.exit_code, 0) << again.output;
  EXPECT_TRUE(model("again") == model("out")) << "the loaded model differs from the saved one";

  const Outcome check = shell(std::string("\"$CHASSIS\" plugins check ") + kPlugins + "/tiny_model.so");
  EXPECT_EQ(check.exit_code, 0) << check.output;
}

// A tokenizer of chassis.tokenizer/1 with the ids of "bytes" trains the same model.
TEST_F(Museum, ATokenizerOfTheFirstInterfaceTrains) {
  ASSERT_EQ(train({"run.output_dir=bytes"}).exit_code, 0);
  const Outcome run = with_plugin({"tokenizer.plugin=tiny_tokenizer", "run.output_dir=tiny"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  expect_same_run("bytes", "tiny");

  const Outcome check = shell(std::string("\"$CHASSIS\" plugins check ") + kPlugins + "/tiny_tokenizer.so");
  EXPECT_EQ(check.exit_code, 0) << check.output;
}

// An optimizer of chassis.optimizer/1 trains, saves its states by role, and resumes as if it had not stopped.
TEST_F(Museum, AnOptimizerOfTheFirstInterfaceTrainsAndResumes) {
  const auto with_optimizer = [&](Words words) {
    words.insert(words.end(), {"optimizer.plugin=tiny_optimizer", "checkpoint.every_steps=3"});
    return with_plugin(words);
  };
  const Outcome whole = with_optimizer({"run.output_dir=whole"});
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  EXPECT_LT(losses("whole").back(), losses("whole").front());
  const std::string saved = shell("cat whole/checkpoints/step-000003/*").output;
  for (const char* name : {"model.norm.weight.velocity", "model.norm.weight.weight"}) EXPECT_HAS(saved, name);

  const Outcome resumed = with_optimizer({"run.output_dir=resumed", "run.resume=whole/checkpoints/step-000003"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_HAS(resumed.output, "at step 3");
  EXPECT_TRUE(model("resumed") == model("whole")) << "the resumed run ends with another model";

  const Outcome check = shell(std::string("\"$CHASSIS\" plugins check ") + kPlugins + "/tiny_optimizer.so");
  EXPECT_EQ(check.exit_code, 0) << check.output;
}

}  // namespace
}  // namespace chassis
