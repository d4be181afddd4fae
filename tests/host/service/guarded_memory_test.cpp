// Buffers beside a guard page. Each test runs in its own process, since guards cannot be turned off.
#include "host/service/guarded_memory.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "host/service/memory.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

Tensor floats(int64_t count) {
  const int64_t sizes[] = {count};
  return Tensor::empty(sizes, Dtype::f32);
}

// Writes element `at` of a buffer of `count` floats and ends the process.
void write_at(MemoryGuard guard, int64_t count, int64_t at) {
  install_memory_allocator();
  guard_memory(guard);
  {
    const Tensor buffer = floats(count);
    buffer.fill(1.0);
    volatile float* data = buffer.data_as<float>();
    data[at] = 2.0f;
  }
  for (const std::string& text : overwritten_guards()) std::fprintf(stderr, "%s\n", text.c_str());
  std::fprintf(stderr, "went on\n");
  std::_Exit(3);
}

TEST(GuardedMemoryDeathTest, EndsAtAnAccessPastABuffer) {
  EXPECT_DEATH(write_at(MemoryGuard::kAfter, 32, 32), "read or wrote 1 byte past the end of a buffer of 128 bytes");
  EXPECT_DEATH(write_at(MemoryGuard::kAfter, 2048, 2048), "past the end of a buffer of 8192 bytes");
}

TEST(GuardedMemoryDeathTest, ReportsWritesBetweenABufferAndTheGuardPage) {
  EXPECT_EXIT(write_at(MemoryGuard::kAfter, 33, 33), testing::ExitedWithCode(3),
              "wrote 4 bytes past the end of a buffer of 132 bytes\nwent on");
  EXPECT_EXIT(write_at(MemoryGuard::kBefore, 32, 33), testing::ExitedWithCode(3),
              "wrote 8 bytes past the end of a buffer of 128 bytes\nwent on");
}

TEST(GuardedMemoryDeathTest, EndsAtAnAccessBeforeABuffer) {
  EXPECT_DEATH(write_at(MemoryGuard::kBefore, 32, -1),
               "read or wrote 4 bytes before the start of a buffer of 128 bytes");
}

TEST(GuardedMemoryDeathTest, AllowsAccessToAllOfABuffer) {
  EXPECT_EXIT(write_at(MemoryGuard::kAfter, 33, 32), testing::ExitedWithCode(3), "^went on");
  EXPECT_EXIT(write_at(MemoryGuard::kBefore, 33, 0), testing::ExitedWithCode(3), "^went on");
}

}  // namespace
}  // namespace chassis
