#include "host/service/device.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

TEST(Device, ChoosesTheProcessorWhenAsked) { EXPECT_EQ(choose_device("cpu").text(), "cpu"); }

TEST(Device, AutoTakesCudaOnlyWhereItWorks) {
  const Device device = choose_device("auto");
  EXPECT_EQ(device.type == Device::Type::kCuda, load_cuda().empty());
}

TEST(Device, SaysWhyCudaCanNotBeHad) {
  if (load_cuda().empty()) GTEST_SKIP() << "this machine has CUDA";
  try {
    choose_device("cuda");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("run.device"), std::string::npos);
  }
}

TEST(Device, RefusesAnUnknownName) { EXPECT_THROW(choose_device("tpu"), Error); }

TEST(Device, KnowsTheMachinesMemory) {
  const DeviceMemory memory = device_memory({});
  EXPECT_GT(memory.total_bytes, 0u);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  EXPECT_GT(resident_bytes(), 0u);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() / 2);
}

TEST(Threads, AreSetForTheProcess) {
  const int before = num_threads();
  set_threads(1);
  EXPECT_EQ(thread_facts().threads, 1);
  set_threads(before);
  EXPECT_EQ(num_threads(), before);
  EXPECT_GE(thread_facts().cores, 1);
}

}  // namespace
}  // namespace chassis
