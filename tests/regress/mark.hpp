// When a plugin of a test went wrong, for who measures what comes of it.
#pragma once

#include <time.h>
#include <unistd.h>

#include <cstdio>

namespace chassis::test {

// "fault of 4711 at 123456789" on stderr: process and nanoseconds of the monotonic clock.
inline void mark_fault() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  char line[64];
  const int size =
      std::snprintf(line, sizeof line, "fault of %d at %lld\n", getpid(), now.tv_sec * 1'000'000'000LL + now.tv_nsec);
  (void)!write(STDERR_FILENO, line, static_cast<size_t>(size));
}

}  // namespace chassis::test
