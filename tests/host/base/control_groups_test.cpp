// The processors that a process may use, read from a folder that stands in for /proc and /sys.
#include "host/base/control_groups.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>

#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

class ControlGroupsTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const std::string path = root_ / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_text(path, text);
  }
  double cores() const { return usable_cores(root_.path()); }
  static double all_cores() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  }

  ScratchDirectory root_;
};

TEST_F(ControlGroupsTest, WithoutALimitTheCoresAreThoseOfTheAffinity) {
  write("proc/self/cgroup", "0::/pod\n");
  write("sys/fs/cgroup/pod/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), all_cores());
  EXPECT_EQ(usable_threads(), static_cast<int>(usable_cores() + 0.999));
}

TEST_F(ControlGroupsTest, TheTightestGroupOfVersion2Counts) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/pod/cpu.max", "50000 100000\n");
  write("sys/fs/cgroup/pod/container/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), 0.5);
}

TEST_F(ControlGroupsTest, Version1CountsQuotaAndPeriodAndAContainersOwnFolder) {
  write("proc/self/cgroup", "4:cpu,cpuacct:/docker/1a\n0::/\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "75000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 0.75);
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cores(), all_cores());
}

}  // namespace
}  // namespace chassis::test
