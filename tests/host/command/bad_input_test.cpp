// Mistakes of users, run by the real program: tests/golden/run/NN-name.toml with NN-name.expected, whose first line is
// the exit code; the output must contain every further line. In the TOML,
//   # sh: COMMAND   prepares the folder: a copy of golden/run/base, with a model saved by an earlier run in model/
//   # run: COMMAND  replaces `exec "$CHASSIS" train "$FILE"`; "$FILE" is the name of the TOML
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

const std::string kFolder = CHASSIS_TEST_SOURCE_DIR "/tests/golden/run";

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> lines_with(const std::string& text, const std::string& mark) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(mark, 0) == 0) found.push_back(line.substr(mark.size()));
  return found;
}

class BadInput : public testing::TestWithParam<std::string> {
 protected:
  // A run without a mistake makes the model that cases start from or damage.
  static void SetUpTestSuite() {
    shared_ = new test::ScratchDirectory;
    fs::copy(kFolder + "/base", shared_->path(), fs::copy_options::recursive);
    const test::Outcome run = shell("exec \"$CHASSIS\" train model.toml", shared_->path());
    ASSERT_EQ(run.exit_code, 0) << run.output;
    fs::rename(*shared_ / "model-run/final", *shared_ / "model");
    fs::remove_all(*shared_ / "model-run");
    // Without its manifest this counts as a directory of another program, so cases may change its files.
    fs::rename(*shared_ / "model/manifest.json", *shared_ / "model-manifest.json");
    run_all();
  }
  static void TearDownTestSuite() {
    delete std::exchange(shared_, nullptr);
    outcomes_.clear();
  }

  // Most of the time of a case is spent starting the program, so two run at a time.
  static void run_all() {
    std::vector<std::string> names;
    const testing::TestSuite& suite = *testing::UnitTest::GetInstance()->current_test_suite();
    for (int i = 0; i < suite.total_test_count(); ++i)
      if (suite.GetTestInfo(i)->should_run()) names.push_back(suite.GetTestInfo(i)->value_param());
    for (std::string& name : names) name = name.substr(1, name.size() - 2);  // value_param() is in quotes
    for (const std::string& name : names) outcomes_[name];
    std::atomic<size_t> next = 0;
    auto work = [&] {
      for (size_t i; (i = next++) < names.size();) outcomes_.at(names[i]) = run_case(names[i]);
    };
    std::thread other(work);
    work();
    other.join();
  }

  static test::Outcome run_case(const std::string& name) {
    const std::string toml = test::text_of_file(kFolder + "/" + name + ".toml");
    test::ScratchDirectory scratch;
    fs::copy(shared_->path(), scratch.path(), fs::copy_options::recursive);
    test::write_text(scratch / (name + ".toml"), toml);
    for (const std::string& line : lines_with(toml, "# sh: ")) {
      const test::Outcome prepared = shell(line, scratch.path());
      if (prepared.exit_code != 0) return {-1, "could not prepare: " + line + "\n" + prepared.output};
    }
    std::string script = "exec \"$CHASSIS\" train \"$FILE\"";
    for (const std::string& line : lines_with(toml, "# run: ")) script = line;
    return shell(script, scratch.path(), name + ".toml");
  }

  static test::Outcome shell(const std::string& script, const std::string& directory, const std::string& file = "") {
    return test::run_process({"/bin/sh", "-c", script}, directory,
                             {{"CHASSIS", CHASSIS_TEST_BINARY_DIR "/bin/chassis"}, {"FILE", file}});
  }
  static test::ScratchDirectory* shared_;
  static std::map<std::string, test::Outcome> outcomes_;
};
test::ScratchDirectory* BadInput::shared_ = nullptr;
std::map<std::string, test::Outcome> BadInput::outcomes_;

TEST_P(BadInput, IsRefusedWithItsExitCodeAndMessage) {
  const std::string name = GetParam();
  const test::Outcome run = outcomes_.at(name);
  std::istringstream expected(test::text_of_file(kFolder + "/" + name + ".expected"));
  std::string line;
  ASSERT_TRUE(std::getline(expected, line)) << name << ".expected is missing; the program said\n"
                                            << run.exit_code << "\n"
                                            << run.output;
  EXPECT_EQ(run.exit_code, std::stoi(line)) << run.output;
  while (std::getline(expected, line)) EXPECT_HAS(run.output, line);
  EXPECT_EQ(run.output.find("internal error"), std::string::npos) << run.output;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Golden, BadInput, testing::ValuesIn(golden_names()), test_name);

}  // namespace
}  // namespace chassis
