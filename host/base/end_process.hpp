#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace chassis {

// Ends the process at once: no destructor and no handler runs. The program ends itself by this, since _exit() is an
// error of a plugin while ExitGuard lives. [any], and signal handlers may call it.
[[noreturn]] inline void end_process(int code) noexcept {
  for (;;) ::syscall(SYS_exit_group, code);
}

}  // namespace chassis
