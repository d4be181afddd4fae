// Reports which plugin call ended the process: by SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT, or by exit().
#pragma once

#include <string>

namespace chassis {

// Installs handlers for these signals. A handler writes the call in progress, the innermost plugin on the stack and a
// short backtrace to stderr; then the signal ends the process as usual. Does nothing under sanitizers.
void report_crashes();

// During its lifetime, exit(), quick_exit() and _exit() are reported as errors of a plugin, and the process ends with
// ExitCode::kPlugin. One object at a time. The program itself ends by end_process(). Direct system calls are not seen.
class ExitGuard {
 public:
  ExitGuard();
  ~ExitGuard();
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
  // [control] Called in a forked copy of a guarded process: guards the copy too.
  static void guard_copy();
};

// [any] The plugin whose code is at `address`: "plugin 'x' 1.2 (PATH)"; NULL if there is none. Allocates nothing.
const char* plugin_with_code_at(const void* address) noexcept;
// Whether this process is the one that an ExitGuard guards, and not a copy that a plugin has forked.
bool is_guarded_process() noexcept;

// [any] Records that the code at `address` belongs to plugin `label` ("plugin 'x' 1.2") until the process ends.
void register_plugin_code(const void* address, const std::string& label, const std::string& path);

}  // namespace chassis
