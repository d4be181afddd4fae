// Buffers beside a page that nobody may touch. In processes of their own: a process that guards its memory goes on so.
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

// What happens to a buffer of so many floats when element `at` is written; ends the process either way.
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

TEST(GuardedMemoryDeathTest, EndsWhatTouchesThePageBehindABuffer) {
  EXPECT_DEATH(write_at(MemoryGuard::kBehind, 32, 32), "read or wrote 1 byte behind the end of a buffer of 128 bytes");
  EXPECT_DEATH(write_at(MemoryGuard::kBehind, 2048, 2048), "behind the end of a buffer of 8192 bytes");
}

TEST(GuardedMemoryDeathTest, TellsWhatWasWrittenUpToThatPage) {
  EXPECT_EXIT(write_at(MemoryGuard::kBehind, 33, 33), testing::ExitedWithCode(3),
              "wrote 4 bytes behind the end of a buffer of 132 bytes\nwent on");
  EXPECT_EXIT(write_at(MemoryGuard::kBefore, 32, 33), testing::ExitedWithCode(3),
              "wrote 8 bytes behind the end of a buffer of 128 bytes\nwent on");
}

TEST(GuardedMemoryDeathTest, EndsWhatTouchesThePageBeforeABuffer) {
  EXPECT_DEATH(write_at(MemoryGuard::kBefore, 32, -1),
               "read or wrote 4 bytes before the begin of a buffer of 128 bytes");
}

TEST(GuardedMemoryDeathTest, LetsBuffersBeUsedToTheirEnds) {
  EXPECT_EXIT(write_at(MemoryGuard::kBehind, 33, 32), testing::ExitedWithCode(3), "^went on");
  EXPECT_EXIT(write_at(MemoryGuard::kBefore, 33, 0), testing::ExitedWithCode(3), "^went on");
}

}  // namespace
}  // namespace chassis
