// The allocator's counters, cache and limit.
#include "host/service/memory.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <vector>

#include "host/base/error.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

constexpr int64_t kMiB = 1 << 20;

Tensor bytes(int64_t count) {
  const int64_t sizes[] = {count};
  return Tensor::empty(sizes, Dtype::u8);
}

class Memory : public testing::Test {
 protected:
  void SetUp() override {
    install_memory_allocator();
    drop_memory_cache();
    reset_peak_memory();
    before_ = memory_usage();
  }
  void TearDown() override { set_memory_limit(0); }
  uint64_t live(MemoryCategory category) const {
    return memory_usage().of(category).live_bytes - before_.of(category).live_bytes;
  }
  MemoryUsage before_;
};

TEST_F(Memory, CountsByCategory) {
  Tensor weights, other;
  {
    MemoryTag tag(MemoryCategory::kParameters);
    weights = bytes(3 * kMiB);
    {
      MemoryTag inner(MemoryCategory::kGradients);
      other = bytes(100);
    }
    EXPECT_EQ(live(MemoryCategory::kGradients), 100u);
  }
  EXPECT_EQ(live(MemoryCategory::kParameters), 3u * kMiB);
  weights.reset();
  EXPECT_EQ(live(MemoryCategory::kParameters), 0u);
  EXPECT_EQ(memory_usage().of(MemoryCategory::kParameters).peak_bytes, 3u * kMiB);
}

TEST_F(Memory, ReportsCategoriesAtThePeak) {
  MemoryTag tag(MemoryCategory::kActivations);
  Tensor a = bytes(8 * kMiB);
  a.reset();
  MemoryTag now(MemoryCategory::kOptimizer);
  const Tensor b = bytes(5 * kMiB);
  const MemoryUsage usage = memory_usage();
  EXPECT_EQ(usage.peak_bytes - before_.live_bytes, 8u * kMiB);
  EXPECT_EQ(usage.of(MemoryCategory::kActivations).bytes_at_total_peak, 8u * kMiB);
  EXPECT_EQ(usage.of(MemoryCategory::kOptimizer).bytes_at_total_peak, 0u);
  uint64_t sum = 0;
  for (const auto& part : usage.categories) sum += part.bytes_at_total_peak;
  EXPECT_EQ(sum, usage.peak_bytes);
}

TEST_F(Memory, CountsByPlugin) {
  const uint16_t owner = memory_owner("some_plugin");
  EXPECT_EQ(memory_owner("some_plugin"), owner);
  const MemoryTag tag(MemoryCategory::kWorkspace, owner);
  const Tensor scratch = bytes(2 * kMiB);
  uint64_t found = 0;
  for (const PluginMemory& memory : memory_by_plugin())
    if (memory.plugin == "some_plugin") found = memory.live_bytes;
  EXPECT_EQ(found, 2u * kMiB);
}

TEST_F(Memory, ReusesLargeBlocks) {
  Tensor a = bytes(6 * kMiB);
  void* const first = a.data();
  a.reset();
  EXPECT_GE(memory_usage().cached_bytes, 6u * kMiB);
  const Tensor b = bytes(6 * kMiB);
  EXPECT_EQ(b.data(), first);
  EXPECT_EQ(memory_usage().cached_bytes, 0u);
}

TEST_F(Memory, ReturnsTheCacheToTheSystem) {
  bytes(6 * kMiB);
  EXPECT_GT(memory_usage().cached_bytes, 0u);
  drop_memory_cache();
  EXPECT_EQ(memory_usage().cached_bytes, 0u);
}

// Blocks of many sizes must not accumulate in the cache: the process stays near its peak of live bytes.
TEST_F(Memory, CachingCostsLittleBeyondThePeak) {
  for (int64_t i = 0; i < 50; ++i) bytes((8 + i * 3) * kMiB);
  const MemoryUsage usage = memory_usage();
  EXPECT_LE(usage.peak_system_bytes, usage.peak_bytes + 40u * kMiB);
}

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Steps of several lengths, whose blocks do not all fit below the peak: blocks of one length serve the next.
TEST_F(Memory, ReusesLargerBlocksWhereSizesVary) {
  constexpr int64_t kLengths[] = {8, 4, 5, 6, 7, 4, 8, 5, 6, 4, 7, 5};
  const auto faults = [&](bool vary) {
    set_memory_sizes_vary(vary);
    drop_memory_cache();
    reset_peak_memory();
    const auto steps = [&] {
      for (const int64_t length : kLengths) {
        std::vector<Tensor> live;
        for (int64_t width = 20; width < 30; ++width) {
          live.push_back(bytes(length * width * kMiB / 16));
          auto* const data = static_cast<volatile char*>(live.back().data());
          for (int64_t at = 0; at < live.back().num_elements(); at += 4096) data[at] = 1;
        }
      }
    };
    steps();
    const long before = page_faults();
    steps();
    const MemoryUsage usage = memory_usage();
    EXPECT_LE(usage.peak_system_bytes, usage.peak_bytes + 40u * kMiB);
    set_memory_sizes_vary(false);
    return page_faults() - before;
  };
  const long otherwise = faults(false);
  EXPECT_LT(faults(true), otherwise / 4);
}

TEST_F(Memory, AlignsData) {
  for (int64_t size : {1, 100, 5000, 2'000'000, 9'000'000})
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes(size).data()) % 64, 0u);
}

TEST_F(Memory, MovesATensorToAnotherCategory) {
  MemoryTag tag(MemoryCategory::kActivations);
  const Tensor gradient = bytes(2 * kMiB);
  retag_memory(gradient, MemoryCategory::kGradients);
  EXPECT_EQ(live(MemoryCategory::kActivations), 0u);
  EXPECT_EQ(live(MemoryCategory::kGradients), 2u * kMiB);
}

TEST_F(Memory, ReportsWhatIsLiveWhenOutOfMemory) {
  MemoryTag tag(MemoryCategory::kActivations);
  const Tensor held = bytes(16 * kMiB);
  set_memory_limit(memory_usage().live_bytes + kMiB);
  try {
    bytes(8 * kMiB);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ExitCode::kOutOfMemory);
    EXPECT_NE(text.find("8 MiB requested for activations"), std::string::npos) << text;
    EXPECT_NE(text.find(": activations 16 MiB"), std::string::npos) << text;
  }
  const MemoryFailure failure = last_memory_failure().value();
  EXPECT_EQ(failure.requested_bytes, 8u * kMiB);
  EXPECT_EQ(failure.category, MemoryCategory::kActivations);
  EXPECT_EQ(failure.usage.of(MemoryCategory::kActivations).live_bytes, 16u * kMiB);
  EXPECT_EQ(failure.limit_bytes, memory_usage().live_bytes + kMiB);
}

}  // namespace
}  // namespace chassis
