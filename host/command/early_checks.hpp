// Requirements that the system must meet before a verb runs.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "host/base/error.hpp"

namespace chassis {

// Memory that LibTorch's constructors and the smallest verb need on top of the mapped libraries; 40 MiB were too few.
inline constexpr uint64_t kStartBytes = uint64_t{80} << 20;
// The part of it that RLIMIT_DATA counts; 58 MiB were too few.
inline constexpr uint64_t kStartDataBytes = uint64_t{64} << 20;

// Ends the process with exit code 4 and a message if the limit `resource` leaves no room for LibTorch's constructors,
// which would abort. `column` of /proc/self/statm has the pages that count. Calls nothing but the kernel.
__attribute__((no_sanitize("address", "undefined", "thread"))) inline void require_memory(int resource, int column,
                                                                                          uint64_t start_bytes,
                                                                                          const char* what,
                                                                                          const char* command) {
  struct {
    uint64_t soft, hard;
  } limit{};
  if (syscall(SYS_prlimit64, 0, resource, nullptr, &limit) != 0 || limit.soft == ~uint64_t{0}) return;
  const long file = syscall(SYS_openat, AT_FDCWD, "/proc/self/statm", O_RDONLY);
  if (file < 0) return;
  char text[160];
  const long size = syscall(SYS_read, file, text, sizeof text);
  syscall(SYS_close, file);
  uint64_t pages = 0;
  for (long i = 0; i < size && column >= 0; ++i) {
    if (text[i] == ' ') --column;
    if (column == 0 && text[i] >= '0' && text[i] <= '9') pages = 10 * pages + static_cast<uint64_t>(text[i] - '0');
  }
  const uint64_t needed = pages * 4096 + start_bytes;
  if (limit.soft >= needed) return;
  const auto write_text = [](const char* words) {
    size_t length = 0;
    while (words[length] != '\0') ++length;
    syscall(SYS_write, STDERR_FILENO, words, length);
  };
  const auto write_mib = [&](uint64_t bytes) {
    char digits[24] = {};
    size_t first = sizeof digits - 1;
    uint64_t number = bytes >> 20;
    do digits[--first] = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    write_text(digits + first);
  };
  write_text("error: out of host memory: the program and its libraries need ");
  write_mib(needed);
  write_text(" MiB of ");
  write_text(what);
  write_text(" to start, but this process may have ");
  write_mib(limit.soft);
  write_text(" MiB\nhint: raise the limit, or remove it: ");
  write_text(command);
  write_text(" unlimited; a run needs more than the start\n");
  syscall(SYS_exit_group, static_cast<int>(ExitCode::kOutOfMemory));
}

// Runs before any constructor. If not even the libraries fit, the dynamic loader has already ended the process.
__attribute__((no_sanitize("address", "undefined", "thread"))) inline void require_memory_limits() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  require_memory(RLIMIT_AS, 0, kStartBytes, "address space (RLIMIT_AS)", "ulimit -v");
  require_memory(RLIMIT_DATA, 5, kStartDataBytes, "data (RLIMIT_DATA)", "ulimit -d");
#endif
}

// A verb needs open files of its own, and libraries open some when they are first used. Raises the soft limit to the
// hard one if it is too low; throws a config error if that is too low as well.
inline void require_open_files() {
  constexpr rlim_t kNeeded = 24;  // a small run of one process trains and saves with 22
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kNeeded) return;
  if (limit.rlim_max < kNeeded)
    throw config_error("a process may have " + std::to_string(limit.rlim_max) + " open files here, but needs " +
                       std::to_string(kNeeded) + " or more")
        .hint("raise the limit, as with: ulimit -n 1024");
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// LibTorch's MKL looks for its libraries from the working directory, and ends the process if there is none. This check
// ends it with exit code 2 and a message, before any constructor.
__attribute__((no_sanitize("address", "undefined", "thread"))) inline void require_working_directory() {
  char path[4096];
  if (syscall(SYS_getcwd, path, sizeof path) >= 0 || errno != ENOENT) return;
  constexpr char kText[] =
      "error: the working directory has been deleted\nhint: cd into one that exists, and start again\n";
  syscall(SYS_write, STDERR_FILENO, kText, sizeof kText - 1);
  syscall(SYS_exit_group, static_cast<int>(ExitCode::kConfig));
}

}  // namespace chassis
