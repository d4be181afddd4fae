// How meta tensors, their views and their copies are counted.
#include "host/service/meta_memory.hpp"
#include "host/service/memory.hpp"
#include "host/service/tensor.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

constexpr int64_t kMetaMiB = 1 << 20;

class MetaMemory : public testing::Test {
 protected:
  MetaMemory() {
    install_memory_allocator();
    install_meta_allocator();
    reset_peak_meta_memory();
    reset_peak_memory();
  }
  static Tensor floats(int64_t count, Device device = kMetaDevice) {
    const int64_t sizes[] = {count};
    return Tensor::empty(sizes, Dtype::f32, device);
  }
  static uint64_t live(Device device = kMetaDevice) { return meta_memory_usage(device).live_bytes; }
  static uint64_t peak(Device device = kMetaDevice) { return meta_memory_usage(device).peak_bytes; }
};

TEST_F(MetaMemory, CountsTensorsWithoutMemory) {
  const uint64_t resident = memory_usage().live_bytes;
  {
    MemoryTag tag(MemoryCategory::kParameters);
    const Tensor terabytes = floats(int64_t{1} << 40);
    EXPECT_EQ(live(), uint64_t{4} << 40);
    EXPECT_EQ(meta_memory_usage(kMetaDevice).of(MemoryCategory::kParameters).live_bytes, uint64_t{4} << 40);
    EXPECT_EQ(memory_usage().live_bytes, resident);
  }
  EXPECT_EQ(live(), 0u);
  EXPECT_EQ(peak(), uint64_t{4} << 40);
}

TEST_F(MetaMemory, CountsNothingForViewsWhichKeepTheWholeAlive) {
  Tensor part;
  {
    const Tensor whole = floats(kMetaMiB);
    part = whole.narrow(0, 16, 16).flat();
    EXPECT_TRUE(part.shares_storage_with(whole));
    EXPECT_EQ(live(), 4u * kMetaMiB);
  }
  EXPECT_EQ(live(), 4u * kMetaMiB);
  part.reset();
  EXPECT_EQ(live(), 0u);
}

TEST_F(MetaMemory, CountsNothingForOperationsInPlace) {
  const Tensor a = floats(kMetaMiB), b = floats(kMetaMiB);
  const uint64_t before = live();
  reset_peak_meta_memory();
  a.zero();
  a.fill(2.0);
  a.copy_from(b);
  a.narrow(0, 7, 100).copy_from(b.narrow(0, 0, 100));
  a.add(b);
  a.multiply(0.5);
  EXPECT_EQ(peak(), before);
}

TEST_F(MetaMemory, CountsNothingForCastsInPlace) {
  const Tensor a = floats(kMetaMiB), b = a.to(Dtype::bf16);
  EXPECT_EQ(live(), 6u * kMetaMiB);
  a.copy_from(b);
  b.copy_from(a);
  EXPECT_EQ(peak(), 6u * kMetaMiB);
}

TEST_F(MetaMemory, CountsHostMemorySeparately) {
  const Tensor offloaded = floats(kMetaMiB, kMetaHost);
  EXPECT_EQ(offloaded.device(), kMetaHost);
  EXPECT_EQ(live(kMetaHost), 4u * kMetaMiB);
  EXPECT_EQ(live(), 0u);
  const Tensor halves = offloaded.to(Dtype::bf16), copy = offloaded.clone();
  EXPECT_EQ(halves.device(), kMetaHost);
  EXPECT_EQ(copy.device(), kMetaHost);
  EXPECT_EQ(live(), 0u);
  const Tensor fetched = offloaded.to(kMetaDevice);
  EXPECT_EQ(fetched.device(), kMetaDevice);
  EXPECT_EQ(live(), 4u * kMetaMiB);
  EXPECT_TRUE(fetched.to(kMetaDevice).shares_storage_with(fetched));
  EXPECT_EQ(live(), 4u * kMetaMiB);
}

TEST_F(MetaMemory, MovesRetaggedBytes) {
  const Tensor sum = floats(kMetaMiB);
  retag_memory(sum.narrow(0, 0, 5), MemoryCategory::kGradients);
  const MemoryUsage usage = meta_memory_usage(kMetaDevice);
  EXPECT_EQ(usage.of(MemoryCategory::kGradients).live_bytes, 4u * kMetaMiB);
  EXPECT_EQ(usage.of(MemoryCategory::kOther).live_bytes, 0u);
  EXPECT_EQ(usage.live_bytes, 4u * kMetaMiB);
}

TEST_F(MetaMemory, CountsChargesWhileTheyExist) {
  {
    const MemoryCharge scratch(123, MemoryCategory::kWorkspace, kMetaHost);
    EXPECT_EQ(meta_memory_usage(kMetaHost).of(MemoryCategory::kWorkspace).live_bytes, 123u);
  }
  EXPECT_EQ(live(kMetaHost), 0u);
  EXPECT_EQ(peak(kMetaHost), 123u);
  const uint64_t before = memory_usage().live_bytes;
  {
    const MemoryCharge mapped(4096, MemoryCategory::kCheckpoint);
    EXPECT_EQ(memory_usage().live_bytes, before + 4096);
  }
  EXPECT_EQ(memory_usage().live_bytes, before);
}

}  // namespace
}  // namespace chassis
