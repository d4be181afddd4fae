// The standard output of the verbs, kept apart from output of plugins: they share the process, and one of their lines
// would break the output of `plan --json`.
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <streambuf>
#include <string>

#include "host/base/thread.hpp"

namespace chassis {

// The verbs print here: the standard output that the program was started with.
std::FILE* output();
// Its descriptor, for child processes that print there too.
int output_descriptor();
// Throws a storage error if the output could not be written. It is no error if the reader has closed the pipe.
void flush_output();

// During its lifetime, lines that other code writes to descriptor 1, to C's stdout or to std::cout go to stderr and are
// counted as warnings. Only one object at a time. Does nothing if descriptor 1 is closed.
class StrayOutput {
 public:
  // `context` names the call in progress. For the streams it runs on the thread that writes, when the line begins; for
  // descriptor 1 on a separate thread when the line arrives, which may be after the call that wrote it.
  explicit StrayOutput(std::function<std::string()> context);
  // Restores descriptor 1 and the streams.
  ~StrayOutput();
  StrayOutput(const StrayOutput&) = delete;
  StrayOutput& operator=(const StrayOutput&) = delete;

  // Takes bytes from a stream. Called on the thread that writes, which holds the mutex of output.cpp.
  void take_from_stream(const char* bytes, size_t count);

 private:
  struct Line {
    std::string text, context;
  };
  void replace_streams();
  void restore_streams();
  void read_lines();
  void take(const char* bytes, size_t count, Line& line, bool in_context);
  void log_line(Line& line, bool in_context);

  std::function<std::string()> context_;
  int read_end_ = -1;
  int stop_[2] = {-1, -1};  // a byte wakes the reader, the end of the pipe ends it
  Line line_;               // from descriptor 1, not yet ended
  Line stream_line_;        // guarded by a mutex of output.cpp
  std::FILE* c_stdout_ = nullptr;
  std::streambuf* cout_ = nullptr;
  Thread reader_;
};

}  // namespace chassis
