// The table of device types: lookups, names and targets of device code.
#include "host/base/device_types.hpp"

#include <gtest/gtest.h>

#include <set>

#include "chassis/tensor.h"

namespace chassis {
namespace {

TEST(DeviceTypes, AreFoundByIdAndByTheValueOfRunDevice) {
  const DeviceSpec* const cuda = find_device_spec(CHASSIS_DEVICE_CUDA);
  ASSERT_NE(cuda, nullptr);
  EXPECT_EQ(device_spec_named("cuda"), cuda);
  EXPECT_EQ(device_spec_named("cuda:1"), cuda);
  EXPECT_EQ(device_spec_named("cpu"), find_device_spec(CHASSIS_DEVICE_CPU));
  for (const char* other : {"", "auto", "meta", "cudas", "cpu:0", "tpu"})
    EXPECT_EQ(device_spec_named(other), nullptr) << other;
  EXPECT_EQ(find_device_spec(99), nullptr);
}

TEST(DeviceTypes, DifferInIdNameAndTitle) {
  std::set<uint32_t> ids;
  std::set<std::string_view> names, titles;
  for (const DeviceSpec& spec : device_specs()) {
    EXPECT_TRUE(ids.insert(spec.id).second && names.insert(spec.name).second && titles.insert(spec.title).second);
    EXPECT_TRUE(spec.has_memory || !spec.has_own_memory) << spec.name;
    EXPECT_TRUE(spec.can_run || !spec.accelerator) << spec.name;
  }
}

TEST(DeviceTypes, AreListedForMessages) {
  EXPECT_EQ(device_names(), (std::vector<std::string>{"cpu", "cuda"}));
  EXPECT_EQ(device_titles([](const DeviceSpec& spec) { return spec.has_memory; }, " and "), "the CPU and CUDA");
  EXPECT_EQ(device_titles([](const DeviceSpec& spec) { return spec.has_streams; }, " and "), "CUDA");
  EXPECT_EQ(device_titles([](const DeviceSpec&) { return true; }, " or "), "the CPU, CUDA or meta");
}

TEST(DeviceTypes, ReadTargetsInTheirUsualSpelling) {
  const AcceleratorSpec& cuda = *find_device_spec(CHASSIS_DEVICE_CUDA)->accelerator;
  for (const char* target : {"80", "90a", "100f", "ptx90", "ptx90a"}) EXPECT_EQ(cuda.read_target(target), target);
  EXPECT_EQ(cuda.read_target("080"), "80");
  for (const char* other : {"", "0", "-80", "a", "ptx", "90b", "8.0", "1234567890"})
    EXPECT_EQ(cuda.read_target(other), "") << other;
}

TEST(DeviceTypes, HaveNoLimitOfSharedMemoryForADeviceThatIsNotThere) {
  const AcceleratorSpec& cuda = *find_device_spec(CHASSIS_DEVICE_CUDA)->accelerator;
  EXPECT_EQ(cuda.shared_memory_limit(1'000'000), std::nullopt);
}

}  // namespace
}  // namespace chassis
