// The settings of the process that plugins share with the host and that change its results or its files: rounding,
// flush of denormals, umask, working directory, signal handlers. They are compared at a few moments, not around every
// call.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>

namespace chassis {

struct ProcessSettings {
  // The handlers of these signals: of crashes, of requests to stop or save, and of writes that fail.
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS,  SIGILL, SIGFPE,  SIGABRT, SIGINT,
                                          SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ};

  int rounding = 0;         // of fegetround(), for the calling thread
  uint64_t float_mode = 0;  // the thread's control register without its status flags; 0 on other machines
  unsigned umask = 0;
  std::string folder;  // the working directory; empty if it has been deleted
  dev_t folder_device = 0;
  ino_t folder_inode = 0;
  std::array<struct sigaction, kSignals.size()> handlers{};
};

// [any] Takes some 50 µs. The umask is read without being changed where the kernel allows it.
ProcessSettings read_process_settings();

// [control] Compares with the settings of now. The umask may also withhold what CreationLimit withholds. If some
// differ, sets all of them back, and throws a plugin error: "WHO changed the umask from 0022 to 0000 WHEN". If `who` is
// empty, the plugin is named by its handler, or else all plugins that were called are.
void require_process_settings(const ProcessSettings& expected, const std::string& who, const std::string& when);

}  // namespace chassis
