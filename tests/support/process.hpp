// Runs programs from tests; captures their output and exit code.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/warm_program.hpp"

namespace chassis::test {

// A temporary directory, removed with its contents.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "chassis-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct Outcome {
  int exit_code = -1;  // 128 + n if signal n ended it
  std::string output;  // both streams
};

class Process {
 public:
  // kWarm is for a command that is the program itself: main() runs in a copy of a process that has loaded it.
  enum class Start { kCold, kWarm };

  // Both streams go to `directory`/output.txt; the variables of `environment` replace inherited ones.
  Process(const std::vector<std::string>& command, const std::string& directory,
          const std::vector<std::pair<std::string, std::string>>& environment = {}, Start start = Start::kCold)
      : output_(directory + "/output.txt") {
    // Nothing is allocated between fork and exec: other threads may hold the allocator.
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    std::vector<char*> arguments, inherited;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    for (const std::string& variable : variables) inherited.push_back(const_cast<char*>(variable.c_str()));
    const auto replaced = [&](std::string_view variable) {
      return std::any_of(environment.begin(), environment.end(),
                         [&](const auto& entry) { return variable.starts_with(entry.first + "="); });
    };
    for (char** variable = environ; *variable; ++variable)
      if (!replaced(*variable)) inherited.push_back(*variable);
    inherited.push_back(nullptr);
    if (start == Start::kWarm && WarmProgram::is_possible()) {
      const WarmProgram::Run run = WarmProgram::of(command[0]).start(directory, output_, arguments, inherited);
      if (run.id < 0) throw std::runtime_error("the waiting program did not start a run");
      pid_ = run.id, status_ = run.status;
      return;
    }
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ > 0) return;
    const int file = open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    if (chdir(directory.c_str()) != 0) _exit(126);
    execve(arguments[0], arguments.data(), inherited.data());
    _exit(127);
  }
  ~Process() {
    if (pid_ <= 0) return;
    if (running()) kill(pid_, SIGKILL);
    wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return pid_; }
  void send(int number) const { kill(pid_, number); }
  // Kills the process's children, then the process, so that none of them shuts down gracefully.
  void kill_all() const {
    std::istringstream children(
        text_of_file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children"));
    for (pid_t child = 0; children >> child;) kill(child, SIGKILL);
    kill(pid_, SIGKILL);
  }
  bool running() const {
    if (status_ >= 0) {
      pollfd ended{status_, POLLIN, 0};
      return poll(&ended, 1, 0) == 0;
    }
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  Outcome wait() {
    int status = 0;
    if (status_ >= 0) {
      while (read(status_, &status, sizeof status) < 0 && errno == EINTR) {
      }
      close(std::exchange(status_, -1));
      pid_ = -1;
    } else {
      waitpid(std::exchange(pid_, -1), &status, 0);
    }
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text_of_file(output_)};
  }
  std::string output_so_far() const { return text_of_file(output_); }
  // Waits for the text in the output. False if the program ended, or a minute passed, before it came.
  bool wait_for(const std::string& text) const {
    for (int i = 0; i < 6000; ++i) {
      if (output_so_far().find(text) != std::string::npos) return true;
      if (!running()) return output_so_far().find(text) != std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  std::string output_;
  pid_t pid_ = -1;
  int status_ = -1;  // of a warm start
};

// Runs a command until it ends. The program is started warm, unless a variable matters to a library that it loads.
inline Outcome run_process(const std::vector<std::string>& command, const std::string& directory,
                           const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  const auto is_read_at_load = [](const auto& variable) {
    return std::ranges::any_of(std::array{"LD_", "OMP_", "GOMP_", "MKL_", "MALLOC_"},
                               [&](const char* start) { return variable.first.starts_with(start); });
  };
  const bool is_warm = command[0].ends_with("/bin/chassis") && std::ranges::none_of(environment, is_read_at_load);
  return Process(command, directory, environment, is_warm ? Process::Start::kWarm : Process::Start::kCold).wait();
}

}  // namespace chassis::test
