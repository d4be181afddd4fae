// Starts the ranks with fork and exec, then waits for signals and for the ends of ranks in one loop.
#include "host/launch/spawn.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "host/base/end_process.hpp"
#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/launch/failure.hpp"
#include "host/launch/launch.hpp"
#include "host/launch/store.hpp"

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
  const sigset_t& before() const { return before_; }

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

// NULL-terminated pointers into `words`, for exec.
std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

int num_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

std::string signal_name(int number) {
  const char* const name = sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

// This process's environment, with the variables of a rank added or replaced.
std::vector<std::string> environment_of(int rank, int num_ranks, int port) {
  std::vector<std::string> own = {fmt::format("CHASSIS_RANK={}", rank), fmt::format("CHASSIS_WORLD_SIZE={}", num_ranks),
                                  fmt::format("CHASSIS_STORE_PORT={}", port)};
  if (!std::getenv("OMP_NUM_THREADS"))
    own.push_back(fmt::format("OMP_NUM_THREADS={}", std::max(1, num_cores() / num_ranks)));
  if (!std::getenv("OMP_WAIT_POLICY")) own.push_back("OMP_WAIT_POLICY=PASSIVE");

  std::vector<std::string> all = own;
  for (char** inherited = environ; *inherited; ++inherited) {
    const auto replaces_it = [&](const std::string& variable) {
      return std::strncmp(variable.c_str(), *inherited, variable.find('=') + 1) == 0;
    };
    if (std::none_of(own.begin(), own.end(), replaces_it)) all.push_back(*inherited);
  }
  return all;
}

class Ranks {
 public:
  Ranks() : server_("127.0.0.1", 0), store_(connect_store("127.0.0.1", server_.port(), kTimeToEnd)) {}
  // Leaves no process running, even if one of them could not be started.
  ~Ranks() {
    send(SIGKILL);
    for (pid_t process : processes_)
      if (process > 0) waitpid(process, nullptr, 0);
  }

  void start(int num_ranks, const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {"chassis"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    for (int rank = 0; rank < num_ranks; ++rank) {
      processes_.push_back(start_one(words, environment_of(rank, num_ranks, server_.port())));
      ++num_running_;
    }
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
  // Between fork and exec, calls only functions that are safe in signal handlers: another thread may hold any lock.
  pid_t start_one(const std::vector<std::string>& words, const std::vector<std::string>& variables) {
    const std::vector<char*> arguments = pointers_to(words), environment = pointers_to(variables);
    const File no_input = File::adopt(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null");
    const int out = output_descriptor();
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) throw internal_error(fmt::format("cannot start a rank: {}", std::strerror(errno)));
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) end_process(static_cast<int>(ExitCode::kCommunication));
    setpgid(0, 0);  // Ctrl-C then reaches only the parent, which forwards it once
    dup2(no_input.descriptor(), STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    pthread_sigmask(SIG_SETMASK, &signals_.before(), nullptr);
    execve("/proc/self/exe", arguments.data(), environment.data());
    end_process(127);
  }

  void send(int number) {
    for (pid_t process : processes_)
      if (process > 0) kill(process, number);
  }

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
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      int status = 0;
      if (processes_[rank] <= 0 || waitpid(processes_[rank], &status, WNOHANG) != processes_[rank]) continue;
      const pid_t process = std::exchange(processes_[rank], 0);
      --num_running_;
      record_end(static_cast<int>(rank), process, status);
    }
  }

  void record_end(int rank, pid_t process, int status) {
    const int killed_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const int code = killed_by ? 128 + killed_by : WEXITSTATUS(status);
    if (code == 0 || killed_rest_) return;
    const bool stopped = code == static_cast<int>(ExitCode::kStopped);
    // A forwarded signal killed it: it had no handler yet, or this was the second Ctrl-C.
    const bool killed_by_forwarded = forwarded_ != 0 && code == 128 + forwarded_;
    if (stopped || killed_by_forwarded) {
      if (exit_code_ == 0 && killed_by)
        log::info("rank {} was ended by {}, before it could stop in order; nothing is saved", rank,
                  signal_name(killed_by));
      if (exit_code_ == 0) exit_code_ = code;
      if (killed_by_forwarded)
        end_run({rank, ExitCode::kStopped, fmt::format("rank {} was ended by {}", rank, signal_name(forwarded_))});
      return;
    }
    Failure failure{rank, static_cast<ExitCode>(code), fmt::format("rank {} ended with exit code {}", rank, code)};
    if (killed_by)
      failure = {rank, ExitCode::kCommunication, fmt::format("rank {} was killed by {}", rank, signal_name(killed_by))};
    // A rank that reported its failure to the others has also reported it to the user.
    if (end_run(failure) || killed_by) log::error("{} (process {})", failure.text, process);
    if (killed_by == SIGKILL) log::info("hint: the system kills a process when memory runs out; see dmesg");
    if (!first_failure_) first_failure_ = static_cast<int>(failure.code);
  }

  // Posts the failure for the other ranks, which then have kTimeToEnd to end. Returns whether it is the first one.
  bool end_run(const Failure& failure) {
    if (!kill_at_) kill_at_ = Clock::now() + kTimeToEnd;
    const bool is_first = post_failure(*store_, failure);
    send(SIGCONT);  // so that a stopped rank learns of it too
    return is_first;
  }

  void kill_the_rest() {
    for (size_t rank = 0; rank < processes_.size(); ++rank)
      if (processes_[rank] > 0)
        log::error("rank {} did not end within {} s after the failure and is killed", rank, kTimeToEnd.count());
    killed_rest_ = true;
    kill_at_.reset();
    send(SIGKILL);
  }

  BlockedSignals signals_;  // first, so that the server's threads do not receive them
  StoreServer server_;
  std::unique_ptr<Store> store_;
  std::vector<pid_t> processes_;  // 0: has ended
  int num_running_ = 0;
  int exit_code_ = 0;
  int forwarded_ = 0;  // the last forwarded signal
  bool killed_rest_ = false;
  std::optional<int> first_failure_;
  std::optional<Clock::time_point> kill_at_;
};

}  // namespace

int run_ranks(int num_ranks, const std::vector<std::string>& arguments) {
  const Launch launch = discover_launch(process_environment());
  if (!launch.source.empty())
    throw config_error(fmt::format("--nproc {} starts ranks, but {} already started this process as rank {} of {}",
                                   num_ranks, launch.source, launch.rank, launch.world_size))
        .hint("leave out --nproc");
  if (num_ranks > num_cores()) log::warn("{} ranks share {} cores and run in turn", num_ranks, num_cores());
  Ranks ranks;
  ranks.start(num_ranks, arguments);
  return ranks.wait_for_all();
}

}  // namespace chassis
