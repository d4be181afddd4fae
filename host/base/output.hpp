// The standard output of the verbs, kept apart from output of plugins: they share the process, and one of their lines
// would break the output of `plan --json`.
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>

#include "host/base/thread.hpp"

namespace chassis {

// The verbs print here: the standard output that the program was started with.
std::FILE* output();
// Its descriptor, for child processes that print there too.
int output_descriptor();
// Throws a storage error if the output could not be written. It is no error if the reader has closed the pipe.
void flush_output();

// During its lifetime, lines that other code writes to descriptor 1 or to C's stdout go to stderr and are counted as
// warnings. Only one object at a time. Does nothing if descriptor 1 is closed.
class StrayOutput {
 public:
  // `context` names the call in progress when a line arrives, which may be after the call that wrote it. It runs on a
  // separate thread.
  explicit StrayOutput(std::function<std::string()> context);
  // Restores descriptor 1.
  ~StrayOutput();
  StrayOutput(const StrayOutput&) = delete;
  StrayOutput& operator=(const StrayOutput&) = delete;

 private:
  void read_lines();
  void take(const char* bytes, size_t count);
  void log_line(const std::string& line);

  std::function<std::string()> context_;
  int read_end_ = -1;
  int stop_[2] = {-1, -1};
  std::string line_;
  Thread reader_;
};

}  // namespace chassis
