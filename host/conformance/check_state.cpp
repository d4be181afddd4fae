// Reads and compares the process state: settings, descriptors, threads.
#include "host/conformance/check_state.hpp"

#include <dirent.h>
#include <fenv.h>
#include <fmt/core.h>
#include <locale.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "host/base/printable.hpp"

extern char** environ;

namespace chassis::check {
namespace {

using Settings = std::map<std::string, std::string>;

void add_environment(Settings& out) {
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string variable = *at;
    const size_t equals = std::min(variable.find('='), variable.size());
    out["the environment variable " + variable.substr(0, equals)] =
        "'" + variable.substr(std::min(equals + 1, variable.size())) + "'";
  }
}

std::string mask_text(const sigset_t& set) {
  std::string out;
  for (int number = 1; number < NSIG; ++number)
    if (sigismember(&set, number) == 1) out += (out.empty() ? "" : " ") + std::to_string(number);
  return out.empty() ? "no signals" : "signals " + out;
}

void add_signals(Settings& out) {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) != 0) continue;
    const auto* handler = reinterpret_cast<const void*>(action.sa_handler);
    const char* name = ::sigabbrev_np(number);
    out["the handler of signal " + (name != nullptr ? "SIG" + std::string(name) : std::to_string(number))] =
        action.sa_handler == SIG_DFL   ? "the default"
        : action.sa_handler == SIG_IGN ? "to ignore it"
                                       : fmt::format("a function at {}", handler);
  }
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  out["the set of blocked signals"] = mask_text(blocked);
}

// Rounding, flush of denormals, traps; not the exception flags of past operations.
void add_floating_point(Settings& out) {
  out["the rounding of floating-point numbers"] = fmt::format("mode {}", ::fegetround());
  out["the floating-point traps"] = fmt::format("{:#x}", ::fegetexcept());
#if defined(__x86_64__)
  constexpr unsigned kFlags = 0x3f, kDenormalsAreZero = 0x40, kFlushToZero = 0x8000;
  const unsigned mode = _mm_getcsr() & ~kFlags;
  out["the flush of denormals to zero"] = (mode & (kDenormalsAreZero | kFlushToZero)) != 0 ? "on" : "off";
#elif defined(__aarch64__)
  uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  out["the flush of denormals to zero"] = (mode & (uint64_t{1} << 24)) != 0 ? "on" : "off";
#endif
}

void add_limits(Settings& out) {
  const std::pair<__rlimit_resource_t, const char*> limits[] = {{RLIMIT_AS, "RLIMIT_AS"},
                                                                {RLIMIT_CORE, "RLIMIT_CORE"},
                                                                {RLIMIT_NOFILE, "RLIMIT_NOFILE"},
                                                                {RLIMIT_STACK, "RLIMIT_STACK"},
                                                                {RLIMIT_FSIZE, "RLIMIT_FSIZE"}};
  for (const auto& [which, name] : limits) {
    rlimit limit{};
    if (::getrlimit(which, &limit) == 0)
      out[std::string("the limit ") + name] = fmt::format("{} of {}", limit.rlim_cur, limit.rlim_max);
  }
  out["the priority of the process"] = std::to_string(::getpriority(PRIO_PROCESS, 0));
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0)
    out["the number of cores that the thread may use"] = std::to_string(CPU_COUNT(&cores));
  itimerval timer{};
  for (const int which : {ITIMER_REAL, ITIMER_PROF})
    if (::getitimer(which, &timer) == 0)
      out[which == ITIMER_REAL ? "the timer of SIGALRM" : "the timer of SIGPROF"] =
          timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0 ? "running" : "off";
}

std::map<std::string, std::string> descriptors() {
  std::map<std::string, std::string> out;
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return out;
  const std::string own = std::to_string(::dirfd(folder));
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] == '.' || entry->d_name == own) continue;
    std::error_code error;
    out[entry->d_name] = std::filesystem::read_symlink(std::string("/proc/self/fd/") + entry->d_name, error).string();
  }
  ::closedir(folder);
  return out;
}

std::map<std::string, std::string> threads() {
  std::map<std::string, std::string> out;
  DIR* folder = ::opendir("/proc/self/task");
  if (folder == nullptr) return out;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::getline(file, out[entry->d_name]);
  }
  ::closedir(folder);
  return out;
}

std::string value_text(const Settings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "unset" : printable(found->second);
}

}  // namespace

ProcessState read_process_state() {
  ProcessState state;
  Settings& settings = state.settings;
  std::error_code error;
  settings["the working folder"] = std::filesystem::current_path(error).string();
  const mode_t mask = ::umask(0);
  ::umask(mask);
  settings["the umask"] = fmt::format("{:04o}", mask);
  settings["the locale"] = ::setlocale(LC_ALL, nullptr);
  settings["the handler of std::terminate"] = fmt::format("{}", reinterpret_cast<void*>(std::get_terminate()));
  settings["the handler of operator new"] = fmt::format("{}", reinterpret_cast<void*>(std::get_new_handler()));
  add_environment(settings);
  add_signals(settings);
  add_floating_point(settings);
  add_limits(settings);
  state.descriptors = descriptors();
  state.threads = threads();
  return state;
}

std::vector<std::pair<std::string, std::string>> differences(const ProcessState& before, const ProcessState& after,
                                                             bool with_threads) {
  std::vector<std::pair<std::string, std::string>> out;
  std::map<std::string, std::string> names = before.settings;
  names.insert(after.settings.begin(), after.settings.end());
  for (const auto& [name, unused] : names) {
    const std::string was = value_text(before.settings, name), is = value_text(after.settings, name);
    if (was != is) out.emplace_back("process/state", fmt::format("{} was {}, is {}", name, was, is));
  }
  for (const auto& [number, what] : after.descriptors) {
    const auto known = before.descriptors.find(number);
    if (known == before.descriptors.end())
      out.emplace_back("process/descriptors", fmt::format("descriptor {} stays open: {}", number, printable(what)));
    else if (known->second != what)
      out.emplace_back("process/descriptors",
                       fmt::format("descriptor {} was {}, is {}", number, printable(known->second), printable(what)));
  }
  for (const auto& [number, what] : before.descriptors)
    if (!after.descriptors.contains(number))
      out.emplace_back("process/descriptors", fmt::format("descriptor {} was closed: {}", number, printable(what)));
  if (with_threads)
    for (const auto& [id, name] : after.threads)
      if (!before.threads.contains(id))
        out.emplace_back("process/threads", fmt::format("a thread named '{}' is still running", printable(name)));
  return out;
}

}  // namespace chassis::check
