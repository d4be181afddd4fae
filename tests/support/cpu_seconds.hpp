// CPU time in tests of how work grows with its input. Unlike the wall clock, it does not count time in which other
// processes had the cores.
#pragma once

#include <ctime>
#include <functional>

namespace chassis::test {

// CPU time of all threads of this process during the action.
inline double cpu_seconds_of(const std::function<void()>& action) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  action();
  return now() - start;
}

}  // namespace chassis::test
