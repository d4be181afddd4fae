// Ends the process without destructors or handlers.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace chassis {

// [any] Ends the process at once; signal handlers may call it. The program uses this instead of _exit(), which counts
// as an error of a plugin while an ExitGuard exists.
[[noreturn]] inline void end_process(int code) noexcept {
  for (;;) ::syscall(SYS_exit_group, code);
}

}  // namespace chassis
