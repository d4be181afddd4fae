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

}  // namespace
}  // namespace chassis
