// Reads descriptor 0 directly: the buffers of C's stdio cannot be interrupted by a signal.
#include "host/command/line_input.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "host/base/file.hpp"

namespace chassis {
namespace {

// Global, since a signal handler has no other access to state.
volatile sig_atomic_t interrupted = 0;
struct sigaction action_before;

}  // namespace

LineInput::Result LineInput::next(std::string& line) {
  while (true) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return Result::kLine;
    }
    if (ended_) {
      line = std::exchange(pending_, "");
      return line.empty() ? Result::kEnd : Result::kLine;
    }
    char bytes[4096];
    const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) {
      pending_.clear();
      return Result::kInterrupted;
    }
    if (count < 0) throw file_error("cannot read", "standard input", errno);
    if (count == 0) ended_ = true;
    pending_.append(bytes, static_cast<size_t>(count));
  }
}

bool LineInput::is_terminal() const { return isatty(STDIN_FILENO) == 1; }

Interrupts::Interrupts() {
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };  // without SA_RESTART: next() returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &action_before);
}

Interrupts::~Interrupts() { sigaction(SIGINT, &action_before, nullptr); }

bool Interrupts::arrived() const { return interrupted != 0; }

void Interrupts::forget() { interrupted = 0; }

}  // namespace chassis
