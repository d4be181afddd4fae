// The memory of the host, read from a folder that stands in for /proc and /sys.
#include "host/service/host_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    write("proc/meminfo",
          "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   50331648 kB\n"
          "SwapFree:        2097152 kB\nCommitLimit:    20971520 kB\nCommitted_AS:   10485760 kB\n");
    write("proc/sys/vm/overcommit_memory", "0\n");
  }
  void write(const std::string& name, const std::string& text) const {
    const std::string path = root_ / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_text(path, text);
  }
  HostMemory memory() const { return host_memory(root_.path()); }

  ScratchDirectory root_;
};

TEST_F(HostMemoryTest, IsTheMachinesWithoutLimits) {
  write("proc/self/cgroup", "0::/\n");
  EXPECT_EQ(memory().total_bytes, 64 * kGiB);
  EXPECT_EQ(memory().free_bytes, 48 * kGiB);
  EXPECT_EQ(memory().free_swap_bytes, 2 * kGiB);
  EXPECT_EQ(memory().limited_by, "");
}

TEST_F(HostMemoryTest, IsThatOfTheTightestControlGroup) {
  write("proc/self/cgroup", "0::/pod/container\n");
  write("sys/fs/cgroup/pod/memory.max", "17179869184\n");      // 16 GiB
  write("sys/fs/cgroup/pod/memory.current", "12884901888\n");  // 12 GiB, of which 2 GiB can be given back
  write("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 2147483648\n");
  write("sys/fs/cgroup/pod/memory.swap.max", "0\n");
  write("sys/fs/cgroup/pod/container/memory.max", "max\n");
  EXPECT_EQ(memory().total_bytes, 16 * kGiB);
  EXPECT_EQ(memory().free_bytes, 6 * kGiB);
  EXPECT_EQ(memory().free_swap_bytes, 0u);
  EXPECT_EQ(memory().limited_by, "memory.max of control group /pod");
}

TEST_F(HostMemoryTest, IsThatOfAContainerWhosePathIsOnlyKnownOutside) {
  write("proc/self/cgroup", "12:cpu,cpuacct:/docker/1a\n5:memory:/docker/1a\n0::/docker/1a\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "8589934592\n");  // 8 GiB, version 1
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
  write("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(memory().total_bytes, 8 * kGiB);
  EXPECT_EQ(memory().free_bytes, 6 * kGiB);
  EXPECT_EQ(memory().limited_by, "memory.limit_in_bytes of control group /");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(memory().free_bytes, 48 * kGiB);
}

TEST_F(HostMemoryTest, IsWhatLinuxPromisesIfItPromisesNoMore) {
  write("proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_EQ(memory().total_bytes, 20 * kGiB);
  EXPECT_EQ(memory().free_bytes, 10 * kGiB);
  EXPECT_EQ(memory().limited_by, "CommitLimit, since vm.overcommit_memory = 2");
}

TEST_F(HostMemoryTest, HasTheLimitsOfTheProcess) {
  const std::string unlimited = "unlimited            unlimited            bytes     \n";
  const std::string title = "Limit                     Soft Limit           Hard Limit           Units     \n";
  write("proc/self/status", "VmSize:\t 1048576 kB\nVmData:\t  524288 kB\n");
  write("proc/self/limits",
        title + "Max data size             " + unlimited + "Max address space         " + unlimited);
  EXPECT_TRUE(process_limits(root_.path()).empty());
  write("proc/self/limits", title + "Max data size             " + unlimited +
                                "Max address space         4294967296           unlimited            bytes     \n");
  const std::vector<ProcessLimit> limits = process_limits(root_.path());
  ASSERT_EQ(limits.size(), 1u);
  EXPECT_EQ(limits[0].name, "RLIMIT_AS");
  EXPECT_EQ(limits[0].command, "ulimit -v");
  EXPECT_EQ(limits[0].limit_bytes, 4 * kGiB);
  EXPECT_EQ(limits[0].used_bytes, kGiB);
}

TEST_F(HostMemoryTest, OfThisMachineIsReadable) {
  EXPECT_GT(host_memory().total_bytes, 0u);
  EXPECT_LE(host_memory().free_bytes, host_memory().total_bytes);
}

}  // namespace
}  // namespace chassis::test
