// Devices: how they are chosen, their memory and their threads.
#include "host/service/device.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"
#include "host/service/memory.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

const DeviceSpec& cuda() { return *device_spec_named("cuda"); }

TEST(Device, CanBeTheCpu) { EXPECT_EQ(choose_device("cpu").text(), "cpu"); }

TEST(Device, IsCudaByDefaultIfCudaWorks) {
  const Device device = choose_device("auto");
  EXPECT_EQ(&device.spec() == &cuda(), load_device_type(cuda()).empty());
}

TEST(Device, ReportsWhyCudaIsNotAvailable) {
  if (load_device_type(cuda()).empty()) GTEST_SKIP() << "this machine has CUDA";
  try {
    choose_device("cuda");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("run.device"), std::string::npos);
  }
}

TEST(Device, RefusesAnUnknownName) { EXPECT_THROW(choose_device("tpu"), Error); }

TEST(Device, ReportsTheMachinesMemory) {
  const DeviceMemory memory = device_memory({});
  EXPECT_GT(memory.total_bytes, 0u);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  EXPECT_GT(peak_resident_bytes(), 0u);
}

TEST(DeviceVersions, AreNoneOnTheCpu) { EXPECT_FALSE(device_versions({})); }

TEST(CudaFactsGpu, AreThoseOfTheDevice) {
  ASSERT_EQ(load_device_type(cuda()), "");
  const auto facts = device_versions(device_of(cuda()));
  ASSERT_TRUE(facts);
  EXPECT_GE(facts->toolkit, 12);
  EXPECT_GE(std::stoi(facts->architecture), 70);
}

TEST(PinnedMemoryGpu, IsCopiedToTheDeviceAndCounted) {
  ASSERT_EQ(load_device_type(cuda()), "");
  const auto live = [] { return memory_usage().of(MemoryCategory::kGradients).live_bytes; };
  const uint64_t before = live();
  const int64_t sizes[] = {1000};
  {
    MemoryTag tag(MemoryCategory::kGradients);
    const Tensor pinned = pinned_tensor(sizes, Dtype::f32);
    EXPECT_EQ(pinned.device(), Device{});
    EXPECT_EQ(live(), before + 4000);
    pinned.fill(2.0);
    const Tensor there = pinned.to(device_of(cuda()));
    there.multiply(3.0);
    pinned.copy_from(there);
    EXPECT_EQ(pinned.sum_of_squares(), 36000.0);
  }
  EXPECT_EQ(live(), before);
}

TEST(Threads, AreSetForTheProcess) {
  const int before = num_threads();
  set_threads(1);
  EXPECT_EQ(num_threads(), 1);
  set_threads(before);
  EXPECT_EQ(num_threads(), before);
}

}  // namespace
}  // namespace chassis
