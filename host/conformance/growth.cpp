// Measures malloc memory and threads of the process.
#include "host/conformance/growth.hpp"

#include <fmt/core.h>
#include <malloc.h>

#include <filesystem>
#include <iterator>

#ifdef __SANITIZE_ADDRESS__
extern "C" size_t __sanitizer_get_current_allocated_bytes();  // gcc has no header for it
#endif

namespace chassis {
namespace {

constexpr int kNumWarmups = 5;
constexpr int64_t kMaxBytesEach = 16 << 10;

int64_t num_threads_of_process() {
  std::error_code error;
  return std::distance(std::filesystem::directory_iterator("/proc/self/task", error), {});
}

}  // namespace

int64_t heap_bytes() {
#ifdef __SANITIZE_ADDRESS__
  return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
#endif
}

std::string growth_of(const std::string& what, int times, const std::function<void()>& once) {
  for (int i = 0; i < kNumWarmups; ++i) once();
  const int64_t threads = num_threads_of_process(), bytes = heap_bytes();
  for (int i = 0; i < times; ++i) once();
  const int64_t more_bytes = heap_bytes() - bytes, more_threads = num_threads_of_process() - threads;
  std::string found;
  if (more_bytes > times * kMaxBytesEach)
    found = fmt::format("{} {} left {} bytes of malloc in use, at most {} are allowed", times, what, more_bytes,
                        times * kMaxBytesEach);
  if (more_threads > 0)
    found += fmt::format("{}{} {} left {} threads running, expected none", found.empty() ? "" : "; ", times, what,
                         more_threads);
  return found;
}

}  // namespace chassis
