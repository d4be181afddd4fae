// Runs a function of the test in a child process whose standard streams are a pseudo terminal.
#pragma once

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace chassis::test {

// Returns what the child wrote to the terminal. The child ends when `body` returns. `seen` gets what it has written so
// far, after each piece.
inline std::string on_terminal(int columns, const std::function<void()>& body,
                               const std::function<void(const std::string&)>& seen = {}) {
  winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("forkpty failed");
  if (child == 0) {
    body();
    _exit(0);
  }
  std::string shown;
  char piece[4096];
  for (ssize_t count; (count = read(terminal, piece, sizeof piece)) > 0;) {
    shown.append(piece, static_cast<size_t>(count));
    if (seen) seen(shown);
  }
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  return shown;
}

}  // namespace chassis::test
