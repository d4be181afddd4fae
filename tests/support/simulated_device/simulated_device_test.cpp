// The simulated device under LibTorch alone: results, streams that are late, memory that the host may not touch.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace chassis::test {
namespace {

const c10::Device kFirst(c10::kCUDA, 0), kSecond(c10::kCUDA, 1);

class SimulatedDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_NE(dlopen(CHASSIS_TEST_BINARY_DIR "/tests/simulated_device/libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL),
              nullptr)
        << dlerror();
  }
  static int64_t active_bytes() { return at::accelerator::getDeviceStats(0).active_bytes[0].current; }
  static c10::Stream side_stream() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(kFirst); }

  const c10::impl::VirtualGuardImpl guard_{c10::kCUDA};
};

void expect_equal(const at::Tensor& device, const at::Tensor& host) {
  ASSERT_TRUE(device.is_cuda());
  EXPECT_TRUE(at::equal(device.cpu(), host));
}

TEST_F(SimulatedDevice, GivesTheBitsOfTheCpu) {
  const at::Tensor a = at::randn({33, 17}), b = at::randn({17, 9}), there = a.to(kFirst), other = b.to(kFirst);
  expect_equal(at::matmul(there, other), at::matmul(a, b));
  expect_equal((there + 1).mul(2), (a + 1).mul(2));
  expect_equal(at::mm(there.to(at::kBFloat16), other.to(at::kBFloat16)),
               at::mm(a.to(at::kBFloat16), b.to(at::kBFloat16)));
  expect_equal(there.t().contiguous().view({-1}).narrow(0, 3, 50), a.t().contiguous().view({-1}).narrow(0, 3, 50));
  expect_equal(at::index_select(there, 0, at::arange(3, kFirst)), a.narrow(0, 0, 3));
  expect_equal(there.to(kSecond), a);
  EXPECT_EQ(there.sum().item<float>(), a.sum().item<float>());
  at::Tensor sum = at::empty({0}, kFirst);
  at::add_out(sum, there, there);
  expect_equal(sum, a + a);
}

TEST_F(SimulatedDevice, RefusesOperandsOfTwoDevices) {
  const at::Tensor a = at::randn({3}), there = a.to(kFirst), elsewhere = a.to(kSecond);
  EXPECT_THROW(there.clone().add_(a), c10::Error);
  EXPECT_THROW(there.clone().add_(elsewhere), c10::Error);
}

TEST_F(SimulatedDevice, IsLateForAHostThatDoesNotWait) {
  const at::Tensor host = at::empty({1000}, at::TensorOptions().pinned_memory(true)), there = at::empty({1000}, kFirst);
  ASSERT_TRUE(host.is_pinned());
  int num_late = 0;
  for (int i = 0; i < 20; ++i) {
    there.fill_(i);
    host.copy_(there, true);
    num_late += host[5].item<float>() != static_cast<float>(i);
    at::accelerator::synchronizeDevice(0);
    EXPECT_EQ(host[5].item<float>(), static_cast<float>(i));
  }
  EXPECT_GE(num_late, 5);
}

TEST_F(SimulatedDevice, IsLateForAStreamThatDoesNotWait) {
  const at::Tensor host = at::empty({1000}, at::TensorOptions().pinned_memory(true));
  int num_late = 0;
  for (int i = 0; i < 20; ++i) {
    host.fill_(i);
    const c10::Stream side = side_stream();
    c10::Event done(c10::kCUDA);
    at::Tensor there;
    {
      const c10::StreamGuard current(side);
      there = at::zeros({1000}, kFirst);
      there.copy_(host, true);
      done.record(side);
    }
    num_late += there.sum().item<float>() != static_cast<float>(1000 * i);
    done.block(guard_.getStream(kFirst));
    EXPECT_EQ(there.sum().item<float>(), static_cast<float>(1000 * i));
  }
  EXPECT_GE(num_late, 5);
}

TEST_F(SimulatedDevice, KeepsFreedMemoryOnlyForRecordedStreams) {
  for (const bool is_recorded : {true, false}) {
    int num_wrong = 0;
    for (int i = 0; i < 20; ++i) {
      const c10::Stream side = side_stream();
      at::Tensor there = at::full({1000}, 7.0, kFirst);
      const at::Tensor host = at::empty({1000}, at::TensorOptions().pinned_memory(true));
      at::accelerator::synchronizeDevice(0);
      {
        const c10::StreamGuard current(side);
        host.copy_(there, true);
      }
      if (is_recorded) there.record_stream(side);
      there.reset();
      at::accelerator::synchronizeDevice(0);
      num_wrong += host[5].item<float>() != 7.0f;
    }
    if (is_recorded)
      EXPECT_EQ(num_wrong, 0);
    else
      EXPECT_GE(num_wrong, 5);
  }
}

TEST_F(SimulatedDevice, CountsAndEndsItsMemory) {
  const int64_t before = active_bytes();
  {
    const at::Tensor held = at::empty({1024}, kFirst);
    EXPECT_EQ(active_bytes(), before + 4096);
    EXPECT_TRUE(held.isnan().all().item<bool>());
  }
  EXPECT_EQ(active_bytes(), before);
  const int64_t num_failures = at::accelerator::getDeviceStats(0).num_ooms;
  EXPECT_THROW(at::empty({int64_t{1} << 40}, kFirst), c10::OutOfMemoryError);
  EXPECT_EQ(at::accelerator::getDeviceStats(0).num_ooms, num_failures + 1);
}

TEST_F(SimulatedDevice, EndsAHostThatReadsItsMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // By SIGSEGV; AddressSanitizer turns it into an exit code.
  EXPECT_DEATH(
      {
        SetUpTestSuite();
        const at::Tensor there = at::zeros({1}, kFirst);
        [[maybe_unused]] const volatile float value = *static_cast<const volatile float*>(there.data_ptr());
      },
      "");
}

}  // namespace
}  // namespace chassis::test
