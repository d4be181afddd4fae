// Keeps a copy of descriptor 1 for the verbs, and reads lines that others write to descriptor 1 through a pipe.
#include "host/base/output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <mutex>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxLineBytes = 4096;  // longer lines are logged in pieces
constexpr int kPartialLineMs = 500;     // after this time, a line without an end is logged as it is

std::atomic<std::FILE*> own_output = nullptr;  // NULL: C's stdout
std::atomic<int> own_descriptor = -1;          // the descriptor of own_output

bool is_writable(int descriptor) { return (::fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDONLY; }

// A stream whose every write fails, for a descriptor that is not open for writing, such as a closed standard output.
std::FILE* unwritable_output() {
  cookie_io_functions_t calls{};
  calls.write = [](void*, const char*, size_t) -> ssize_t { return errno = EBADF, 0; };
  return ::fopencookie(nullptr, "w", calls);
}

StrayOutput* stray_output = nullptr;
std::atomic<bool> is_ending = false;  // the reader is to end

// Guards stray_output and what was written to its streams. Never destroyed: a plugin's thread may write at any time.
std::mutex& streams_mutex() {
  static std::mutex& one = *new std::mutex;
  return one;
}

void write_stray(const char* bytes, size_t count) {
  {
    const std::lock_guard lock(streams_mutex());
    if (stray_output != nullptr) return stray_output->take_from_stream(bytes, count);
  }
  // The verb has ended. Descriptor 1 has its results, which must stay intact.
  if (::write(STDERR_FILENO, bytes, count) < 0) return;
}

// Replaces the buffer of std::cout.
class StrayBuffer : public std::streambuf {
 protected:
  int_type overflow(int_type c) override {
    const char byte = traits_type::to_char_type(c);
    if (!traits_type::eq_int_type(c, traits_type::eof())) write_stray(&byte, 1);
    return traits_type::not_eof(c);
  }
  std::streamsize xsputn(const char* bytes, std::streamsize count) override {
    write_stray(bytes, static_cast<size_t>(count));
    return count;
  }
};

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
  if (::poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0) return;  // closed on purpose, as `head` does
  if (!is_writable(output_descriptor()))
    throw storage_error("standard output is closed, and the output is lost")
        .hint("redirect it, to /dev/null if you do not need it");
  throw storage_error(std::string("standard output cannot be written") +
                      (cause != 0 ? std::string(": ") + std::strerror(cause) : std::string()));
}

StrayOutput::StrayOutput(std::function<std::string()> context) : context_(std::move(context)) {
  std::fflush(stdout);
  const int kept = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (kept < 0) return;
  int ends[2];
  std::FILE* const own = is_writable(kept) ? ::fdopen(kept, "w") : unwritable_output();
  const auto give_up = [&] {
    if (own != nullptr) std::fclose(own);
    ::close(kept);  // closing it twice does no harm: there is no other thread yet
  };
  if (own == nullptr || ::pipe2(ends, O_CLOEXEC) != 0) {
    give_up();
    return;
  }
  if (::pipe2(stop_, O_CLOEXEC | O_NONBLOCK) != 0) {
    ::close(ends[0]), ::close(ends[1]), give_up();
    return;
  }
  is_ending = false;
  read_end_ = ends[0];
  ::fcntl(read_end_, F_SETFL, O_NONBLOCK);
  own_output = own;
  own_descriptor = kept;
  ::dup2(ends[1], STDOUT_FILENO);
  ::close(ends[1]);
  std::setvbuf(stdout, nullptr, _IONBF, 0);  // writes that bypass the variable arrive at once
  replace_streams();
  reader_ = Thread("stray output", [this] { read_lines(); });
}

StrayOutput::~StrayOutput() {
  if (!reader_.joinable()) return;
  restore_streams();
  std::fflush(stdout);
  std::FILE* const own = own_output.exchange(nullptr);
  const int kept = own_descriptor.exchange(-1);
  std::fflush(own);
  ::dup2(kept, STDOUT_FILENO);
  const bool closes_it = ::fileno(own) == kept;
  std::fclose(own);
  if (!closes_it) ::close(kept);
  // Rationale: a plugin's child process may keep the ends of both pipes open, so this does not wait for their end.
  is_ending = true;
  if (::write(stop_[1], "", 1) < 0) log::debug("the reader of standard output is awake already");
  ::close(stop_[1]);
  reader_.join();
  ::close(stop_[0]);
  ::close(read_end_);
}

// Rationale: a stream that calls back on the writing thread knows the plugin whose call that is. It is never freed,
// since a plugin may keep its address.
void StrayOutput::replace_streams() {
  {
    const std::lock_guard lock(streams_mutex());
    stray_output = this;
  }
  cookie_io_functions_t calls{};
  calls.write = [](void*, const char* bytes, size_t count) -> ssize_t {
    write_stray(bytes, count);
    return static_cast<ssize_t>(count);
  };
  static std::FILE* const stream = ::fopencookie(nullptr, "w", calls);
  if (stream != nullptr) {
    std::setvbuf(stream, nullptr, _IONBF, 0);
    c_stdout_ = std::exchange(stdout, stream);
  }
  static StrayBuffer& buffer = *new StrayBuffer;
  std::cout.flush();
  cout_ = std::cout.rdbuf(&buffer);
}

void StrayOutput::restore_streams() {
  if (c_stdout_ != nullptr) {
    std::fflush(stdout);  // a plugin may have given it a buffer
    stdout = c_stdout_;
  }
  std::cout.rdbuf(cout_);
  const std::lock_guard lock(streams_mutex());
  stray_output = nullptr;
  if (!stream_line_.text.empty()) log_line(stream_line_, true);
}

void StrayOutput::take_from_stream(const char* bytes, size_t count) {
  const bool was_empty = stream_line_.text.empty();
  take(bytes, count, stream_line_, true);
  // Wakes the reader, which logs a line without an end after a while.
  if (was_empty && !stream_line_.text.empty() && ::write(stop_[1], "", 1) < 0) return;
}

void StrayOutput::read_lines() {
  char piece[4096];
  for (bool stopping = false;;) {
    const ssize_t count = ::read(read_end_, piece, sizeof piece);
    if (count > 0) {
      take(piece, static_cast<size_t>(count), line_, false);
      continue;
    }
    if (stopping || count == 0) break;
    const auto has_line = [&] {
      const std::lock_guard lock(streams_mutex());
      return !line_.text.empty() || !stream_line_.text.empty();
    };
    pollfd watched[] = {{read_end_, POLLIN, 0}, {stop_[0], POLLIN, 0}};
    const int num_ready = ::poll(watched, 2, has_line() ? kPartialLineMs : -1);
    if (num_ready == 0) {
      if (!line_.text.empty()) log_line(line_, false);
      const std::lock_guard lock(streams_mutex());
      if (!stream_line_.text.empty()) log_line(stream_line_, true);
    }
    const bool is_woken = (watched[1].revents & POLLIN) != 0 && ::read(stop_[0], piece, sizeof piece) >= 0;
    stopping = is_ending || (!is_woken && watched[1].revents != 0);
  }
  if (!line_.text.empty()) log_line(line_, false);
}

void StrayOutput::take(const char* bytes, size_t count, Line& line, bool in_context) {
  for (size_t i = 0; i < count; ++i) {
    if (in_context && line.text.empty() && context_) line.context = context_();
    if (bytes[i] != '\n') line.text += bytes[i];
    if (bytes[i] == '\n' || line.text.size() == kMaxLineBytes) log_line(line, in_context);
  }
}

void StrayOutput::log_line(Line& line, bool in_context) {
  if (!in_context) line.context = context_ ? context_() : "";
  const auto [text, context] = std::exchange(line, {});
  counted_warning(
      "lines that plugins wrote to standard output",
      "a plugin or a library writes to standard output, which is for the program's results; its lines go to stderr");
  if (in_context)
    log::info("stdout{}: {}", context.empty() ? "" : " of " + context, text);
  else
    log::info("stdout{}: {}", context.empty() ? "" : " (while " + context + " was in progress)", text);
}

}  // namespace chassis
