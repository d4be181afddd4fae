// A process that ends inside a plugin says where: by SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT, or by exit().
#pragma once

#include <string>

namespace chassis {

// From now on such a signal is told on stderr, with the innermost plugin on the stack, the call in progress and a short
// backtrace, and then ends the process as it would have. Does nothing under sanitizers, which tell more.
void report_crashes();

// While it lives, exit() and quick_exit() are errors of a plugin: told, and the process ends with ExitCode::kPlugin. One
// at a time. A process that ends by _exit() runs nothing more, so this cannot be seen from inside it.
class ExitGuard {
 public:
  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

// [any] Code at `address` belongs to this plugin ("plugin 'x' 1.2"), loaded from `path`, for as long as the process lives.
void name_code(const void* address, const std::string& who, const std::string& path);

}  // namespace chassis
