#include "host/base/output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/thread.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxLineBytes = 4096;      // longer ones are told in pieces
constexpr int kUnfinishedMilliseconds = 500;  // then a line without an end is told as it is

std::atomic<std::FILE*> own_output = nullptr;  // none: C's stdout
std::atomic<int> own_descriptor = -1;          // beneath own_output

bool is_writable(int descriptor) { return (::fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDONLY; }

// For a descriptor that is not open for writing, as one that was closed is left: every write fails.
std::FILE* unwritable_output() {
  cookie_io_functions_t calls{};
  calls.write = [](void*, const char*, size_t) -> ssize_t { return errno = EBADF, 0; };
  return ::fopencookie(nullptr, "w", calls);
}

}  // namespace

std::FILE* output() {
  std::FILE* const own = own_output.load();
  return own != nullptr ? own : stdout;
}

int output_descriptor() {
  const int own = own_descriptor.load();
  return own >= 0 ? own : ::fileno(stdout);
}

void flush_output() {
  errno = 0;
  if (std::fflush(output()) == 0 && std::ferror(output()) == 0) return;
  const int cause = errno;
  std::clearerr(output());
  pollfd reader{output_descriptor(), POLLOUT, 0};
  if (::poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0) return;  // it left on purpose, as `head` does
  if (!is_writable(output_descriptor()))
    throw storage_error("standard output is closed, and what was to be printed is lost")
        .hint("redirect it; > /dev/null if nobody is to read it");
  throw storage_error(std::string("standard output cannot be written") +
                      (cause != 0 ? std::string(": ") + std::strerror(cause) : std::string()));
}

StrayOutput::StrayOutput(std::function<std::string()> writer) : writer_(std::move(writer)) {
  std::fflush(stdout);
  const int kept = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (kept < 0) return;
  int ends[2];
  std::FILE* const own = is_writable(kept) ? ::fdopen(kept, "w") : unwritable_output();
  const auto give_up = [&] {
    if (own != nullptr) std::fclose(own);
    ::close(kept);  // perhaps a second time: there is no other thread yet
  };
  if (own == nullptr || ::pipe2(ends, O_CLOEXEC) != 0) {
    give_up();
    return;
  }
  if (::pipe2(stop_, O_CLOEXEC) != 0) {
    ::close(ends[0]), ::close(ends[1]), give_up();
    return;
  }
  read_end_ = ends[0];
  ::fcntl(read_end_, F_SETFL, O_NONBLOCK);
  own_output = own;
  own_descriptor = kept;
  ::dup2(ends[1], STDOUT_FILENO);
  ::close(ends[1]);
  std::setvbuf(stdout, nullptr, _IONBF, 0);  // a plugin's printf arrives when it is called
  reader_ = thread_without_signals([this] { read_lines(); });
}

StrayOutput::~StrayOutput() {
  if (!reader_.joinable()) return;
  std::fflush(stdout);
  std::FILE* const own = own_output.exchange(nullptr);
  const int kept = own_descriptor.exchange(-1);
  std::fflush(own);
  ::dup2(kept, STDOUT_FILENO);
  const bool closes_it = ::fileno(own) == kept;
  std::fclose(own);
  if (!closes_it) ::close(kept);
  // Rationale: a child of a plugin may hold the other end open for long, so the end of the pipe is not waited for.
  ::close(stop_[1]);
  reader_.join();
  ::close(stop_[0]);
  ::close(read_end_);
}

void StrayOutput::read_lines() {
  char piece[4096];
  for (bool stopping = false;;) {
    const ssize_t count = ::read(read_end_, piece, sizeof piece);
    if (count > 0) {
      take(piece, static_cast<size_t>(count));
      continue;
    }
    if (stopping || count == 0) break;
    pollfd watched[] = {{read_end_, POLLIN, 0}, {stop_[0], 0, 0}};
    const int num_ready = ::poll(watched, 2, line_.empty() ? -1 : kUnfinishedMilliseconds);
    if (num_ready == 0) tell(std::exchange(line_, {}));
    stopping = watched[1].revents != 0;
  }
  if (!line_.empty()) tell(std::exchange(line_, {}));
}

void StrayOutput::take(const char* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (bytes[i] != '\n') line_ += bytes[i];
    if (bytes[i] == '\n' || line_.size() == kMaxLineBytes) tell(std::exchange(line_, {}));
  }
}

void StrayOutput::tell(const std::string& line) {
  const std::string who = writer_ ? writer_() : "";
  counted_warning(
      "lines that plugins wrote to standard output",
      "a plugin or a library writes to standard output, which is the program's own; its lines go to stderr");
  log::info("stdout{}: {}", who.empty() ? "" : " (while " + who + " was in progress)", line);
}

}  // namespace chassis
