// Standard output of the verbs, kept apart from what plugins write: they live in the same process, and a line of theirs
// in the middle of `plan --json` would spoil it.
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

namespace chassis {

// Where verbs print: the standard output that the program was started with.
std::FILE* output();
// Its descriptor, to be given to processes that are to print there too.
int output_descriptor();
// Throws a storage error if what was printed could not be written; a reader that has left is none.
void flush_output();

// While it lives, whatever else writes to descriptor 1 or to C's stdout goes to stderr line by line, and is counted as
// a warning. One at a time; descriptor 1 is left alone if it is closed.
class StrayOutput {
 public:
  // `writer` says what is in progress when a line arrives, which may be later than whoever wrote it; from a thread of
  // its own.
  explicit StrayOutput(std::function<std::string()> writer);
  // Gives descriptor 1 back.
  ~StrayOutput();
  StrayOutput(const StrayOutput&) = delete;
  StrayOutput& operator=(const StrayOutput&) = delete;

 private:
  void read_lines();
  void take(const char* bytes, size_t count);
  void tell(const std::string& line);

  std::function<std::string()> writer_;
  int read_end_ = -1;
  int stop_[2] = {-1, -1};
  std::string line_;
  std::thread reader_;
};

}  // namespace chassis
