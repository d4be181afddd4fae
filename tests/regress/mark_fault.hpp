// Lets a plugin of a test report the time of its fault, for tests that measure how long the ranks take to end.
#pragma once

#include <time.h>
#include <unistd.h>

#include <cstdio>

namespace chassis::test {

// Writes "fault of 4711 at 123456789" to stderr: process id, and nanoseconds of the monotonic clock.
inline void mark_fault() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  char line[64];
  const int size =
      std::snprintf(line, sizeof line, "fault of %d at %lld\n", getpid(), now.tv_sec * 1'000'000'000LL + now.tv_nsec);
  (void)!write(STDERR_FILENO, line, static_cast<size_t>(size));
}

}  // namespace chassis::test
