// Runs programs from tests; captures their output and exit code.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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
  // Both streams go to `directory`/output.txt; the variables of `environment` replace inherited ones.
  Process(const std::vector<std::string>& command, const std::string& directory,
          const std::vector<std::pair<std::string, std::string>>& environment = {})
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
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
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
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  Outcome wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
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
};

inline Outcome run_process(const std::vector<std::string>& command, const std::string& directory,
                           const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  return Process(command, directory, environment).wait();
}

}  // namespace chassis::test
