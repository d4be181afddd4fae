// The conformance tests of rows find each fault of a faulty member.
#include "host/conformance/rows_checks.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/host/data/support.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

class RowsConformance : public testing::Test {
 protected:
  std::string failures(const std::string& fault, bool with_file = true) {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    const auto instance = plugins_.make("rows", "lines");
    const auto files = with_file ? std::vector<std::string>{file_, other_} : std::vector<std::string>();
    std::string text;
    for (const std::string& failure : rows_failures(*instance, files)) text += failure + "\n";
    ::unsetenv("NONCONFORMING");
    return text;
  }

  TempFolder folder_;
  std::string file_ = folder_.write("a.rows", "{\"a\": 1}\n{\"a\": 2}\n{\"a\": 3}\n{\"a\": 4}\nend\n");
  std::string other_ = folder_.write("b.rows", "{\"b\": 1}\n{\"b\": 2}\nend\n");
  test::LoadedPlugins plugins_{{CHASSIS_TEST_STUB_DIR}};
};

TEST_F(RowsConformance, ACorrectMemberPasses) {
  EXPECT_EQ(failures(""), "");
  EXPECT_EQ(failures("", false), "");
}

TEST_F(RowsConformance, FindsWrongRefusals) {
  EXPECT_HAS(failures("another code", false), "a file that is not there: INTERNAL, expected NOT_FOUND");
  EXPECT_HAS(failures("no words", false), "a file with empty is refused without a message");
}

TEST_F(RowsConformance, FindsWrongRows) {
  EXPECT_HAS(failures("no JSON"), "row 1: ");
  EXPECT_HAS(failures("wrong count"), "gives 4 rows, and open says 1");
  EXPECT_HAS(failures("too many"),
             "other rows if 1 at a time are read, with another file open: gives 2 of 1 rows, and says 2");
  EXPECT_HAS(failures("ends early"), "other rows if 1 at a time are read, with another file open");
  EXPECT_HAS(failures("goes back"), "has read 1 bytes, and before it ");
  EXPECT_HAS(failures("never ends"), "a.rows: has read ");
  EXPECT_HAS(failures("never ends"), " bytes of a file of 40");
  EXPECT_HAS(failures("negative count"), "a.rows: says that it has -7 rows, expected a number or -1");
  EXPECT_HAS(failures("line breaks"), "row 1 has a line break between its values: ");
  EXPECT_HAS(failures("another thread"), "a.rows: gives rows to the sink on another thread than the one that called");
}

TEST_F(RowsConformance, FindsStateThatDifferentFilesShareAndMemoryThatIsLeft) {
  EXPECT_HAS(failures("shares a state"), "a.rows: other rows if 2 files are open at once than if it is read alone");
  EXPECT_HAS(failures("leaks"), "20 readings of ");
}

}  // namespace
}  // namespace chassis
