// A process that ends inside a plugin says where: by SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT, or by exit().
#pragma once

#include <string>

namespace chassis {

// From now on such a signal is told on stderr, with the call in progress, the innermost plugin on the stack and a short
// backtrace, and then ends the process as it would have. Does nothing under sanitizers, which tell more.
void report_crashes();

// [any] Gives the calling thread a second stack, so that the report can be made when the first one is exhausted. Cheap
// after the first time; nothing before report_crashes().
void survive_stack_overflow() noexcept;

// While it lives, exit(), quick_exit() and _exit() are errors of a plugin: told, and the process ends with
// ExitCode::kPlugin. One at a time. The program ends itself by end_process(). Not seen: the system call itself.
class ExitGuard {
 public:
  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
};

// [any] Code at `address` belongs to this plugin ("plugin 'x' 1.2"), loaded from `path`, for as long as the process
// lives.
void name_code(const void* address, const std::string& who, const std::string& path);

}  // namespace chassis
