// The parent's side: one process per test, its output, its end.
#include "host/plugin/check.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "host/base/error.hpp"
#include "host/base/output.hpp"

extern char** environ;

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSkippedExit = 77;
constexpr size_t kMaxOutputBytes = 16 << 10;

struct Ended {
  int status = 0;
  bool timed_out = false;
  std::string output;
};

Ended run_process(const std::vector<std::string>& arguments, std::chrono::milliseconds timeout) {
  std::array<int, 2> pipe_ends{};
  if (::pipe2(pipe_ends.data(), O_CLOEXEC) != 0) throw internal_error(fmt::format("pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], 2);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int spawned = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe_ends[1]);
  if (spawned != 0) {
    ::close(pipe_ends[0]);
    throw internal_error(fmt::format("{} can not be started: {}", arguments.front(), std::strerror(spawned)));
  }

  Ended ended;
  const auto deadline = Clock::now() + timeout;
  bool open = true, running = true;
  while (running) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      ended.timed_out = true;
      ::kill(pid, SIGKILL);
    }
    // Output may end before the process, or be held open by a grandchild after it: look at both.
    pollfd watched{open ? pipe_ends[0] : -1, POLLIN, 0};
    if (!ended.timed_out && ::poll(&watched, 1, static_cast<int>(std::min<int64_t>(left, 20))) > 0) {
      std::array<char, 4096> piece;
      const ssize_t num_bytes = ::read(pipe_ends[0], piece.data(), piece.size());
      if (num_bytes <= 0)
        open = false;
      else if (ended.output.size() < kMaxOutputBytes)
        ended.output.append(piece.data(), static_cast<size_t>(num_bytes));
      if (num_bytes > 0) continue;
    }
    running = ::waitpid(pid, &ended.status, ended.timed_out ? 0 : WNOHANG) == 0;
  }
  ::fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  std::array<char, 4096> piece;
  for (ssize_t n;
       (n = ::read(pipe_ends[0], piece.data(), piece.size())) > 0 && ended.output.size() < kMaxOutputBytes;) {
    ended.output.append(piece.data(), static_cast<size_t>(n));
  }
  ::close(pipe_ends[0]);
  while (!ended.output.empty() && ended.output.back() == '\n') ended.output.pop_back();
  return ended;
}

bool is_wanted(const std::string& name, const std::vector<std::string>& only) {
  return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& wanted) {
           return name == wanted || name.starts_with(wanted + "/");
         });
}

}  // namespace

std::vector<CheckResult> run_checks(const CheckRequest& request) {
  const std::vector<std::string> names = check_names();
  for (const std::string& wanted : request.only) {
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return is_wanted(name, {wanted}); })) {
      throw plugin_error(fmt::format("there is no check '{}'; there are {}", wanted, fmt::join(names, ", ")));
    }
  }
  std::vector<CheckResult> results;
  for (const std::string& name : names) {
    if (!is_wanted(name, request.only)) continue;
    const auto begin = Clock::now();
    const Ended ended = run_process({request.self, "plugins", "check-in-process", request.path, name}, request.timeout);
    CheckResult result{name, CheckOutcome::kFailed, ended.output,
                       std::chrono::duration<double>(Clock::now() - begin).count()};
    if (ended.timed_out) {
      result.text = fmt::format("did not end within {} ms\n{}", request.timeout.count(), ended.output);
    } else if (WIFSIGNALED(ended.status)) {
      const int signal = WTERMSIG(ended.status);
      result.text = fmt::format("crashed with signal {} ({})\n{}", signal, ::strsignal(signal), ended.output);
    } else if (WEXITSTATUS(ended.status) == 0) {
      result.outcome = CheckOutcome::kPassed;
    } else if (WEXITSTATUS(ended.status) == kSkippedExit) {
      result.outcome = CheckOutcome::kSkipped;
    } else if (ended.output.empty()) {
      result.text = fmt::format("ended with exit code {}", WEXITSTATUS(ended.status));
    }
    while (!result.text.empty() && result.text.back() == '\n') result.text.pop_back();
    if (request.report) request.report(result);
    results.push_back(std::move(result));
  }
  return results;
}

std::string check_result_text(const CheckResult& result) {
  constexpr std::array<std::string_view, 3> kWords = {"passed ", "FAILED ", "skipped"};
  std::string out =
      fmt::format("{}  {} ({:.1f} s)\n", kWords[static_cast<size_t>(result.outcome)], result.test, result.seconds);
  if (result.outcome == CheckOutcome::kPassed) return out;
  for (size_t at = 0; at < result.text.size();) {
    const size_t end = std::min(result.text.find('\n', at), result.text.size());
    out += "         " + result.text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

int check_plugin(CheckRequest request) {
  const auto report = request.report;
  request.report = [&](const CheckResult& result) {
    std::fputs(check_result_text(result).c_str(), output());
    std::fflush(output());
    if (report) report(result);
  };
  size_t counts[3] = {};
  for (const CheckResult& result : run_checks(request)) ++counts[static_cast<size_t>(result.outcome)];
  std::fputs(
      fmt::format("{}: {} passed, {} failed, {} skipped\n", request.path, counts[0], counts[1], counts[2]).c_str(),
      output());
  return static_cast<int>(counts[1] == 0 ? ExitCode::kOk : ExitCode::kPlugin);
}

}  // namespace chassis
