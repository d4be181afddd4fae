// Whether ranks fit into the memory of their machines and devices.
#include "host/plan/memory_fit.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

RankMemory on_cpu(const std::string& machine, uint64_t needs, uint64_t free = 60, uint64_t total = 100) {
  RankMemory m;
  m.machine = machine;
  m.device_bytes = needs;
  m.device_free = m.host_free = free;
  m.device_total = m.host_total = total;
  return m;
}
RankMemory on_gpu(const std::string& machine, uint64_t needs, uint64_t host_needs, uint64_t device_free = 60) {
  RankMemory m;
  m.machine = machine;
  m.on_device = true;
  m.device_bytes = needs, m.host_bytes = host_needs;
  m.device_free = device_free, m.device_total = 80;
  m.host_free = 60, m.host_total = 100;
  return m;
}

TEST(MemoryFit, RanksOfOneMachineShareItsMemory) {
  EXPECT_EQ(find_shortage({on_cpu("a", 40), on_cpu("b", 40)}, true).rank, -1);
  const MemoryShortage shortage = find_shortage({on_cpu("b", 10), on_cpu("a", 40), on_cpu("a", 40)}, true);
  EXPECT_EQ(shortage.rank, 1);
  EXPECT_EQ(shortage.needed_bytes, 80u);
  EXPECT_EQ(shortage.available_bytes, 60u);
  EXPECT_EQ(shortage.what, "2 ranks on a");
  EXPECT_EQ(find_shortage({on_cpu("b", 10), on_cpu("a", 40), on_cpu("a", 40)}, false).rank, -1)
      << "the machine has 100";
}

TEST(MemoryFit, EveryRankHasItsOwnDevice) {
  EXPECT_EQ(find_shortage({on_gpu("a", 50, 10), on_gpu("a", 50, 10)}, true).rank, -1);
  const MemoryShortage device = find_shortage({on_gpu("a", 50, 10), on_gpu("a", 50, 10, 40)}, true);
  EXPECT_EQ(device.rank, 1);
  EXPECT_EQ(device.what, "rank 1 on its device");
  EXPECT_EQ(find_shortage({on_gpu("a", 50, 10), on_gpu("a", 50, 10, 40)}, false).rank, -1) << "it has 80";
  const MemoryShortage host = find_shortage({on_gpu("a", 50, 40), on_gpu("a", 50, 40)}, true);
  EXPECT_EQ(host.what, "2 ranks on a") << "offloaded tensors are in the memory that they share";
}

TEST(MemoryFit, NamesTheControlGroupThatLimitsTheMemory) {
  RankMemory limited = on_cpu("a", 40), other = on_cpu("a", 40);
  limited.host_free = 50;
  limited.limited_by = "memory.max of control group /pod";
  limited.swap_free = other.swap_free = 2048;
  const MemoryShortage shortage = find_shortage({other, limited}, true);
  EXPECT_EQ(shortage.available_bytes, 50u);
  EXPECT_EQ(text_of_limits(shortage),
            " (memory.max of control group /pod), and 2 KiB of swap space, with which steps take many times as long");
  EXPECT_EQ(text_of_limits(find_shortage({on_cpu("a", 80)}, true)), "");
}

TEST(MemoryFit, ComparesALimitOfTheProcessWithWhatItNeedsBesides) {
  const std::vector<ProcessLimit> limits = {{"RLIMIT_AS", "ulimit -v", 4096, 1024}};
  EXPECT_EQ(limit_warning(limits, 3072), "");
  EXPECT_EQ(
      limit_warning(limits, 4096),
      "RLIMIT_AS is 4 KiB, of which 1 KiB are in use: 4 KiB more are planned at the peak; raise it (ulimit -v), or "
      "lower train.micro_batch_size");
  EXPECT_EQ(limit_warning({}, 4096), "");
}

TEST(MemoryFit, AnEstimateChoosesButDoesNotRefuse) {
  RankMemory unplanned = on_cpu("a", 120);
  unplanned.planned = false;
  EXPECT_EQ(find_shortage({unplanned}, true).rank, 0);
  EXPECT_EQ(find_shortage({unplanned}, false).rank, -1);
}

}  // namespace
}  // namespace chassis
