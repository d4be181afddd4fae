// Restricts the calling thread, and threads and processes that it starts, to one of its cores for a while.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

namespace chassis::test {

class OneCore {
 public:
  OneCore() {
    EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    int core = 0;
    while (!CPU_ISSET(core, &before_)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OneCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;

 private:
  cpu_set_t before_{};
};

}  // namespace chassis::test
