// The input is a file in memory: a program that does not read it keeps nobody waiting.
#include "host/generate/judge.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"

extern char** environ;

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<pid_t> running_group = 0;  // 0: no judge is running

bool is_program(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (is_program(name)) return name;
    throw config_error(fmt::format("'{}' is not an executable file", printable(name)));
  }
  const char* const variable = std::getenv("PATH");
  const std::string folders = variable == nullptr ? "/usr/bin:/bin" : variable;
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string folder = folders.substr(begin, end - begin);
    if (const std::string path = (folder.empty() ? "." : folder) + "/" + name; !name.empty() && is_program(path))
      return path;
    begin = end + 1;
  }
  throw config_error(fmt::format("there is no program '{}' in PATH", printable(name)));
}

Error cannot_start(const std::string& path, int error) {
  return config_error(fmt::format("'{}' cannot be started: {}", printable(path), std::strerror(error)));
}

File file_in_memory(std::string_view content) {
  File file = File::adopt(::memfd_create("answer", MFD_CLOEXEC), "a file in memory");
  if (!file.is_open()) throw file_error("cannot create", file.path(), errno);
  file.pwrite_exact(content.data(), content.size(), 0);
  return file;
}

// Starts the program in a process group of its own, with the signals as a shell would set them.
pid_t start_program(const std::string& path, const std::vector<std::string>& command, const File& input) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.descriptor(), STDIN_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  for (const int number : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGQUIT}) sigaddset(&signals, number);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw cannot_start(path, error);
  running_group = pid;
  return pid;
}

// True if the process has ended before the deadline. Leaves it to be waited for, so that nothing else gets its id.
bool ends_before(pid_t pid, Clock::time_point deadline) {
  for (std::chrono::microseconds pause(500);; pause = std::min(2 * pause, std::chrono::microseconds(5000))) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid)
      return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
  }
}

// Kills what is left of the group, and returns the status of its first process.
int end_group(pid_t pid) {
  ::kill(-pid, SIGKILL);
  running_group = 0;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) throw internal_error(fmt::format("waiting for process {}: {}", pid, std::strerror(errno)));
  return status;
}

}  // namespace

void kill_running_judge() noexcept {
  if (const pid_t group = running_group; group > 0) ::kill(-group, SIGKILL);
}

Judge::Judge(std::vector<std::string> command, std::chrono::milliseconds timeout)
    : command_(std::move(command)), path_(find_program(command_.at(0))), timeout_(timeout) {}

bool Judge::accepts(std::string_view input) const {
  const File file = file_in_memory(input);
  const Clock::time_point deadline = Clock::now() + timeout_;
  const pid_t pid = start_program(path_, command_, file);
  const bool has_ended = ends_before(pid, deadline);
  const int status = end_group(pid);
  const std::string name = printable(command_.front());
  if (!has_ended)
    counted_warning("answers that were not judged in time",
                    fmt::format("'{}' was killed after {} s; the answer has not passed", name,
                                static_cast<double>(timeout_.count()) / 1000.0));
  else if (WIFSIGNALED(status))
    counted_warning("answers whose judge crashed", fmt::format("'{}' was ended by signal {} ({}); the answer has not "
                                                               "passed",
                                                               name, WTERMSIG(status), ::strsignal(WTERMSIG(status))));
  return has_ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace chassis
