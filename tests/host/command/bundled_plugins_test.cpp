// The program's own plugins pass the tests that plugins of others must pass.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/process.hpp"

namespace chassis {
namespace {

// A plugin that needs a GPU, a file or an option is compared with nothing, which is no failure.
TEST(BundledPlugins, Conform) {
  const test::ScratchDirectory scratch;
  int num_checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CHASSIS_TEST_PLUGIN_DIR)) {
    if (entry.path().extension() != ".so") continue;
    const test::Outcome outcome =
        test::run_process({CHASSIS_TEST_BINARY_DIR "/bin/chassis", "plugins", "check", entry.path().string(), "--only",
                           "numerics/reference", "--timeout", "300"},
                          scratch.path());
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.output.find("is not known to conform") != std::string::npos)
        << outcome.output;
    ++num_checked;
  }
  EXPECT_GT(num_checked, 40);
}

}  // namespace
}  // namespace chassis
