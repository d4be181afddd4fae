// A program of the user that decides whether an answer is right.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

class Judge {
 public:
  // `command`: a program and its arguments. Throws a config error if there is no such program, which is looked up in
  // PATH unless its name has a slash.
  Judge(std::vector<std::string> command, std::chrono::milliseconds timeout);

  // Runs the program with `input` as its standard input, and returns whether it ends with exit code 0. What it writes
  // to standard output is ignored. Its process group is killed after the timeout, and when the program has ended; a
  // timeout and a signal are counted warnings. Throws a config error if the program cannot be started. Blocks.
  bool accepts(std::string_view input) const;

 private:
  std::vector<std::string> command_;
  std::string path_;  // of the program
  std::chrono::milliseconds timeout_;
};

// [any][signal handler] Kills the process group of a judge that is running.
void kill_running_judge() noexcept;

}  // namespace chassis
