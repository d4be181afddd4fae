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

}  // namespace

std::FILE* output() {
  std::FILE* const own = own_output.load();
  return own != nullptr ? own : stdout;
}

int output_descriptor() { return ::fileno(output()); }

void flush_output() {
  errno = 0;
  if (std::fflush(output()) == 0 && std::ferror(output()) == 0) return;
  const int cause = errno;
  std::clearerr(output());
  pollfd reader{output_descriptor(), POLLOUT, 0};
  if (::poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0) return;  // it left on purpose, as `head` does
  throw storage_error(std::string("standard output cannot be written") +
                      (cause != 0 ? std::string(": ") + std::strerror(cause) : std::string()));
}

StrayOutput::StrayOutput(std::function<std::string()> writer) : writer_(std::move(writer)) {
  std::fflush(stdout);
  const int kept = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (kept < 0) return;
  int ends[2];
  std::FILE* const own = ::fdopen(kept, "w");
  if (own == nullptr || ::pipe2(ends, O_CLOEXEC) != 0) {
    own != nullptr ? std::fclose(own) : ::close(kept);
    return;
  }
  if (::pipe2(stop_, O_CLOEXEC) != 0) {
    ::close(ends[0]), ::close(ends[1]), std::fclose(own);
    return;
  }
  read_end_ = ends[0];
  ::fcntl(read_end_, F_SETFL, O_NONBLOCK);
  own_output = own;
  ::dup2(ends[1], STDOUT_FILENO);
  ::close(ends[1]);
  std::setvbuf(stdout, nullptr, _IONBF, 0);  // a plugin's printf arrives when it is called
  reader_ = thread_without_signals([this] { read_lines(); });
}

StrayOutput::~StrayOutput() {
  if (!reader_.joinable()) return;
  std::fflush(stdout);
  std::FILE* const own = own_output.exchange(nullptr);
  std::fflush(own);
  ::dup2(::fileno(own), STDOUT_FILENO);
  std::fclose(own);
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
  counted_warning("lines that plugins wrote to standard output",
                  "a plugin or a library writes to standard output, which is the program's own; its lines go to stderr");
  log::info("stdout{}: {}", who.empty() ? "" : " (while " + who + " was in progress)", line);
}

}  // namespace chassis
