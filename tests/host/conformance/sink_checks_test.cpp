// The conformance tests of sinks find each fault of a nonconforming one.
#include "host/conformance/sink_checks.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

class SinkConformance : public testing::Test {
 protected:
  ~SinkConformance() override { ::unsetenv("NONCONFORMING"); }

  std::string failures(const std::string& fault) {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    std::string text;
    for (const std::string& line : sink_failures([this] { return plugins_.make("sink", "nonconforming_sink"); }))
      text += line + "\n";
    return text;
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
};

TEST_F(SinkConformance, FindsNothingWhereNothingIsWrong) {
  EXPECT_EQ(failures(""), "");
  EXPECT_EQ(failures("reads until finish"), "");
}

TEST_F(SinkConformance, FindsAThreadThatReadsThePageAfterFinish) {
  EXPECT_HAS(failures("late"), "times after finish has returned");
}

TEST_F(SinkConformance, FindsRefusals) {
  EXPECT_HAS(failures("needs values"), "a step without values is refused: ");
  EXPECT_HAS(failures("knows all texts"), "a text of type 99 is refused: ");
}

TEST_F(SinkConformance, FindsMemoryThatGrows) { EXPECT_HAS(failures("leaks"), "200 steps"); }

}  // namespace
}  // namespace chassis
