// Forks the ranks, then waits for signals and for the ends of ranks in one loop.
#include "host/launch/spawn.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "host/base/control_groups.hpp"
#include "host/base/end_process.hpp"
#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/launch/launch.hpp"
#include "host/launch/limits.hpp"
#include "host/launch/rank_failure.hpp"
#include "host/launch/store.hpp"
#include "host/plugin/call.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeToEnd = 10s;  // after a failure
constexpr int kForwardedSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Blocks signals during its lifetime, also for threads started in that time; wait() receives them instead.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&set_);
    for (int number : kForwardedSignals) sigaddset(&set_, number);
    for (int number : {SIGCHLD, SIGTSTP}) sigaddset(&set_, number);
    signal(SIGCHLD, SIG_DFL);  // if the parent process had it ignored, no child could be reaped
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // The signal that arrived; 0 if none arrived before `end`.
  int wait(std::optional<Clock::time_point> end) const {
    if (!end) return std::max(0, sigwaitinfo(&set_, nullptr));
    const auto left = std::max(Clock::duration::zero(), *end - Clock::now());
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec limit{whole.count(), std::chrono::nanoseconds(left - whole).count()};
    return std::max(0, sigtimedwait(&set_, nullptr, &limit));
  }

 private:
  sigset_t set_, before_;
};

std::string signal_name(int number) {
  const char* const name = sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

// The variables of a rank, before its first thread. Those of OpenMP stay as the user set them.
void set_environment(int rank, int num_ranks, int port) {
  const auto set = [](const char* name, int value) { ::setenv(name, std::to_string(value).c_str(), 1); };
  set("CHASSIS_RANK", rank);
  set("CHASSIS_WORLD_SIZE", num_ranks);
  set("CHASSIS_STORE_PORT", port);
  if (!std::getenv("OMP_NUM_THREADS")) set("OMP_NUM_THREADS", std::max(1, usable_threads() / num_ranks));
}

// Tells ranks that were forked before the store was served where it is: one integer for each.
class PortPipe {
 public:
  PortPipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw internal_error(fmt::format("pipe: {}", std::strerror(errno)));
    read_end_ = File::adopt(ends[0], "pipe");
    write_end_ = File::adopt(ends[1], "pipe");
  }
  void tell(int num_ranks, int port) {
    const std::vector<int> ports(static_cast<size_t>(num_ranks), port);
    const auto size = static_cast<ssize_t>(ports.size() * sizeof(int));
    if (::write(write_end_.descriptor(), ports.data(), ports.size() * sizeof(int)) != size)
      throw internal_error(fmt::format("pipe: {}", std::strerror(errno)));
  }
  // Called in a rank. Returns -1 if the process that started it has ended.
  int wait() {
    write_end_ = File();
    int port = -1;
    for (ssize_t got = -1; (got = ::read(read_end_.descriptor(), &port, sizeof port)) != sizeof port;)
      if (got >= 0 || errno != EINTR) return -1;
    return port;
  }

 private:
  File read_end_, write_end_;
};

// Called in a rank, directly after the fork.
void become_rank(int rank, int num_ranks, pid_t parent, PortPipe& port) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  ::prctl(PR_SET_NAME, fmt::format("chassis rank {}", rank).c_str());  // as `top` shows it
  const int no_input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(no_input, STDIN_FILENO);
  ::close(no_input);
  ::setpgid(0, 0);  // Ctrl-C then reaches only the parent, which forwards it once

  // The parent answers these signals with a message; a rank is ended by them as usual.
  for (const int number : kForwardedSignals) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) ::signal(number, SIG_DFL);
  }
  const int store_port = port.wait();
  if (::getppid() != parent || store_port < 0) end_process(static_cast<int>(ExitCode::kCommunication));
  set_environment(rank, num_ranks, store_port);
}

// Leaves no process running, even if one of them could not be started.
class Processes {
 public:
  Processes() = default;
  Processes(Processes&& other) noexcept : ids_(std::exchange(other.ids_, {})) {}
  ~Processes() {
    send(SIGKILL);
    for (const pid_t process : ids_)
      if (process > 0) ::waitpid(process, nullptr, 0);
  }
  void add(pid_t process) { ids_.push_back(process); }
  // Called in a fork, which is not the parent of these processes.
  void forget() { ids_.clear(); }
  void send(int number) const {
    for (const pid_t process : ids_)
      if (process > 0) ::kill(process, number);
  }
  std::vector<pid_t>& ids() { return ids_; }  // by rank; 0: has ended

 private:
  std::vector<pid_t> ids_;
};

class Ranks {
 public:
  Ranks(const BlockedSignals& signals, Processes processes, PortPipe& port, const SharedCalls& calls)
      : signals_(signals),
        calls_(calls),
        server_("127.0.0.1", 0),
        store_(connect_store("127.0.0.1", server_.port(), kTimeToEnd)),
        processes_(std::move(processes)),
        num_running_(static_cast<int>(processes_.ids().size())) {
    port.tell(num_running_, server_.port());
  }

  int wait_for_all() {
    while (num_running_ > 0) {
      const int number = signals_.wait(kill_at_);
      reap();
      if (number == SIGTSTP)
        pause_with_ranks();
      else if (std::find(std::begin(kForwardedSignals), std::end(kForwardedSignals), number) !=
               std::end(kForwardedSignals))
        forward(number);
      if (kill_at_ && Clock::now() >= *kill_at_) kill_the_rest();
    }
    if (!first_failure_) return exit_code_;
    const auto reported = find_failure(*store_);
    return reported ? static_cast<int>(reported->code) : *first_failure_;
  }

 private:
  void send(int number) const { processes_.send(number); }

  void forward(int number) {
    forwarded_ = number;
    send(number);
  }

  void pause_with_ranks() {
    send(SIGSTOP);
    raise(SIGSTOP);
    send(SIGCONT);
  }

  void reap() {
    for (size_t rank = 0; rank < processes_.ids().size(); ++rank) {
      int status = 0;
      pid_t& id = processes_.ids()[rank];
      if (id <= 0 || waitpid(id, &status, WNOHANG) != id) continue;
      const pid_t process = std::exchange(id, 0);
      --num_running_;
      record_end(static_cast<int>(rank), process, status);
    }
  }

  void record_end(int rank, pid_t process, int status) {
    const int killed_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const int code = killed_by ? 128 + killed_by : WEXITSTATUS(status);
    const bool has_left = code == 0 && !calls_.is_over(rank);  // by a bare system call, or replaced by exec
    if ((code == 0 && !has_left) || killed_rest_) return;
    if (has_left) return record_early_end(rank, process);
    const bool stopped = code == static_cast<int>(ExitCode::kStopped);
    // A forwarded signal killed it: it had no handler yet, or this was the second Ctrl-C.
    const bool killed_by_forwarded = forwarded_ != 0 && code == 128 + forwarded_;
    if (stopped || killed_by_forwarded) {
      if (exit_code_ == 0 && killed_by)
        log::info("rank {} was ended by {}, before it could stop cleanly; nothing is saved", rank,
                  signal_name(killed_by));
      if (exit_code_ == 0) exit_code_ = code;
      if (killed_by_forwarded)
        end_run({rank, ExitCode::kStopped, fmt::format("rank {} was ended by {}", rank, signal_name(forwarded_))});
      return;
    }
    RankFailure failure{rank, static_cast<ExitCode>(code), fmt::format("rank {} ended with exit code {}", rank, code)};
    if (killed_by)
      failure = {rank, ExitCode::kCommunication, fmt::format("rank {} was killed by {}", rank, signal_name(killed_by))};
    if (const std::string call = calls_.last_call(rank); !call.empty()) failure.text += " inside " + call;
    // A rank that reported its failure to the others has also reported it to the user.
    if (end_run(failure) || killed_by) log::error("{} (process {})", failure.text, process);
    if (killed_by == SIGKILL) log::info("hint: the system kills a process when memory runs out; see dmesg");
    if (!first_failure_) first_failure_ = static_cast<int>(failure.code);
  }

  // A rank that says nothing and ends with exit code 0 has not finished its part.
  void record_early_end(int rank, pid_t process) {
    const std::string call = calls_.last_call(rank);
    const RankFailure failure{rank, call.empty() ? ExitCode::kCommunication : ExitCode::kPlugin,
                              fmt::format("rank {} ended with exit code 0 before the run was over, {}", rank,
                                          call.empty() ? "outside all plugins" : "inside " + call)};
    end_run(failure);
    log::error("{} (process {})", failure.text, process);
    if (!first_failure_) first_failure_ = static_cast<int>(failure.code);
  }

  // Posts the failure for the other ranks, which then have kTimeToEnd to end. Returns whether it is the first one.
  bool end_run(const RankFailure& failure) {
    if (!kill_at_) kill_at_ = Clock::now() + kTimeToEnd;
    const bool is_first = post_failure(*store_, failure);
    send(SIGCONT);  // so that a stopped rank learns of it too
    return is_first;
  }

  void kill_the_rest() {
    for (size_t rank = 0; rank < processes_.ids().size(); ++rank)
      if (processes_.ids()[rank] > 0)
        log::error("rank {} did not end within {} s after the failure and is killed", rank, kTimeToEnd.count());
    killed_rest_ = true;
    kill_at_.reset();
    send(SIGKILL);
  }

  const BlockedSignals& signals_;  // the server's threads do not receive them
  const SharedCalls& calls_;
  StoreServer server_;
  std::unique_ptr<Store> store_;
  Processes processes_;
  int num_running_;
  int exit_code_ = 0;
  int forwarded_ = 0;  // the last forwarded signal
  bool killed_rest_ = false;
  std::optional<int> first_failure_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

std::optional<int> run_ranks(int num_ranks) {
  const Launch launch = discover_launch(process_environment());
  if (!launch.source.empty())
    throw config_error(fmt::format("--nproc {} starts ranks, but {} already started this process as rank {} of {}",
                                   num_ranks, launch.source, launch.rank, launch.world_size))
        .hint("leave out --nproc");
  require_clock();
  require_descriptors(num_ranks);
  if (num_ranks > usable_threads()) log::warn("{} ranks share {} cores and run in turn", num_ranks, usable_threads());
  const BlockedSignals signals;
  PortPipe port;
  const SharedCalls calls(num_ranks);
  Processes processes;
  const pid_t parent = ::getpid();
  std::fflush(nullptr);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t process = ::fork();
    if (process < 0) throw internal_error(fmt::format("cannot start a rank: {}", std::strerror(errno)));
    if (process == 0) {
      processes.forget();
      become_rank(rank, num_ranks, parent, port);
      calls.record_here(rank);
      return std::nullopt;
    }
    processes.add(process);
  }
  return Ranks(signals, std::move(processes), port, calls).wait_for_all();
}

}  // namespace chassis
