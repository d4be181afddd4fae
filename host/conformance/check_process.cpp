// The child process of a test: its folder, environment, pipes and process group.
#include "host/conformance/check_process.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "host/base/end_process.hpp"
#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/plugin/crash_report.hpp"
#include "host/plugin/library.hpp"

extern char** environ;

namespace chassis::check {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxOutputBytes = 16 << 10;
constexpr size_t kMaxVerdictBytes = 1 << 20;
constexpr size_t kMaxFiles = 20;

Error system_failure(const std::string& what, int error) {
  return internal_error(fmt::format("{}: {}", what, std::strerror(error)));
}

// An empty folder: working folder, home and temporary folder of one test.
class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / "chassis-check-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw system_failure("cannot create a folder in " + path_, errno);
  }
  ~Scratch() {
    if (::getpid() != owner_) return;  // in the child process
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::recursive_directory_iterator at(path_, error), end; !error && at != end; at.increment(error))
      if (names.size() < kMaxFiles) names.push_back(fs::path(at->path()).lexically_relative(path_).string());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
  const pid_t owner_ = ::getpid();
};

// Moves a descriptor above those of the child process, so that dup2 in the child does not overwrite it.
void move_up(int& descriptor) {
  const int moved = ::fcntl(descriptor, F_DUPFD_CLOEXEC, kVerdictDescriptor + 1);
  if (moved < 0) throw system_failure("a pipe", errno);
  ::close(descriptor);
  descriptor = moved;
}

// A pipe whose ends are closed by exec; the reading end does not block.
class Pipe {
 public:
  explicit Pipe(size_t max_bytes) : max_bytes_(max_bytes) {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw system_failure("pipe", errno);
    for (int& end : ends_) move_up(end);
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Pipe() {
    for (const int end : ends_)
      if (end >= 0) ::close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  // Called in the child process, which has closed both ends.
  void forget() { ends_ = {-1, -1}; }
  void close_write_end() {
    ::close(ends_[1]);
    ends_[1] = -1;
  }
  // Returns false at the end of the file.
  bool read_some() {
    std::array<char, 4096> piece;
    ssize_t num_bytes;
    while ((num_bytes = ::read(ends_[0], piece.data(), piece.size())) > 0)
      if (text.size() < max_bytes_) text.append(piece.data(), static_cast<size_t>(num_bytes));
    return num_bytes < 0 && (errno == EAGAIN || errno == EINTR);
  }

  std::string text;

 private:
  const size_t max_bytes_;
  std::array<int, 2> ends_{-1, -1};
};

// This process's environment with `folder` as home and temporary folder; the plugin cache stays the same.
std::vector<std::string> environment_in(const std::string& folder) {
  std::vector<std::string> out;
  const std::string cache = plugin_cache_folder();
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view variable = *at;
    if (!variable.starts_with("TMPDIR=") && !variable.starts_with("HOME=") && !variable.starts_with("XDG_CACHE_HOME="))
      out.emplace_back(variable);
  }
  out.push_back("TMPDIR=" + folder);
  out.push_back("HOME=" + folder);
  // "…/chassis/plugins"
  if (!cache.empty()) out.push_back("XDG_CACHE_HOME=" + fs::path(cache).parent_path().parent_path().string());
  return out;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

pid_t spawn(const std::vector<std::string>& arguments, const std::string& folder, const Pipe& out, const Pipe& err,
            const Pipe& verdict) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end(), 1);
  posix_spawn_file_actions_adddup2(&actions, err.write_end(), 2);
  posix_spawn_file_actions_adddup2(&actions, verdict.write_end(), kVerdictDescriptor);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  const std::vector<std::string> environment = environment_in(folder);
  pid_t pid = 0;
  const auto argv = pointers(arguments), envp = pointers(environment);
  const int error = ::posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw system_failure(arguments.front() + " cannot be started", error);
  return pid;
}

bool has_one_thread() {
  std::error_code error;
  const fs::directory_iterator threads("/proc/self/task", error);
  return !error && std::distance(fs::begin(threads), fs::end(threads)) == 1;
}

// Does in a copy of this process what spawn() does between fork and exec, and what exec does.
void enter_child(const std::string& folder, Pipe& out, Pipe& err, Pipe& verdict) {
  const std::vector<std::string> environment = environment_in(folder);
  ::clearenv();
  for (const std::string& variable : environment) {
    const size_t at = variable.find('=');
    ::setenv(variable.substr(0, at).c_str(), variable.c_str() + at + 1, 1);
  }
  const int null = ::open("/dev/null", O_RDONLY);
  const bool done = ::setpgid(0, 0) == 0 && ::dup2(null, 0) == 0 && ::dup2(out.write_end(), 1) == 1 &&
                    ::dup2(err.write_end(), 2) == 2 && ::dup2(verdict.write_end(), kVerdictDescriptor) >= 0 &&
                    ::close_range(kVerdictDescriptor + 1, ~0u, 0) == 0 && ::chdir(folder.c_str()) == 0;
  if (!done) end_process(127);
  for (Pipe* pipe : {&out, &err, &verdict}) pipe->forget();
  ExitGuard::guard_copy();
}

pid_t copy_of_this_process(const std::string& folder, Pipe& out, Pipe& err, Pipe& verdict,
                           const std::function<int()>& in_child) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw system_failure("fork", errno);
  if (pid == 0) {
    enter_child(folder, out, err, verdict);
    throw EndOfChild{in_child()};
  }
  ::setpgid(pid, pid);  // called in both processes, since either may be first
  return pid;
}

void trim_end(std::string& text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, std::chrono::milliseconds timeout,
                          const std::function<int()>& in_child) {
  const Scratch scratch;
  Pipe out(kMaxOutputBytes), err(kMaxOutputBytes), verdict(kMaxVerdictBytes);
  const pid_t pid = in_child && has_one_thread() ? copy_of_this_process(scratch.path(), out, err, verdict, in_child)
                                                 : spawn(arguments, scratch.path(), out, err, verdict);
  std::array<Pipe*, 3> pipes{&out, &err, &verdict};
  for (Pipe* pipe : pipes) pipe->close_write_end();

  ProcessResult ended;
  const auto deadline = Clock::now() + timeout;
  std::array<bool, 3> open{true, true, true};
  for (bool running = true; running;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      ended.timed_out = true;
      ::kill(pid, kSayCallSignal);
      ::usleep(200'000);
      ::kill(-pid, SIGKILL);
    }
    // Output may end before the process does, and a grandchild may keep it open afterwards, so watch both.
    std::array<pollfd, 3> watched;
    for (size_t i = 0; i < pipes.size(); ++i) watched[i] = {open[i] ? pipes[i]->read_end() : -1, POLLIN, 0};
    if (!ended.timed_out) ::poll(watched.data(), watched.size(), static_cast<int>(std::min<int64_t>(left, 20)));
    for (size_t i = 0; i < pipes.size(); ++i)
      if (open[i] && watched[i].revents != 0) open[i] = pipes[i]->read_some();
    running = ::waitpid(pid, &ended.status, ended.timed_out ? 0 : WNOHANG) == 0;
  }
  for (Pipe* pipe : pipes) pipe->read_some();
  ended.left_children = !ended.timed_out && ::kill(-pid, 0) == 0;
  ::kill(-pid, SIGKILL);
  ended.out = std::move(out.text);
  ended.err = std::move(err.text);
  trim_end(ended.out);
  trim_end(ended.err);
  ended.verdict = read_verdict(verdict.text);
  if (WIFEXITED(ended.status)) ended.files = scratch.files();
  return ended;
}

std::string verdict_text(const CheckVerdict& verdict) {
  Json json{{"outcome", static_cast<int>(verdict.outcome)}, {"text", verdict.text}, {"traces", verdict.traces}};
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::optional<CheckVerdict> read_verdict(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    return CheckVerdict{static_cast<CheckOutcome>(json.at("outcome").get<int>()), json.at("text").get<std::string>(),
                        json.at("traces").get<std::vector<std::pair<std::string, std::string>>>()};
  } catch (const Json::exception&) {
    return std::nullopt;  // the plugin wrote this text
  }
}

}  // namespace chassis::check
