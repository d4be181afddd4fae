// The program's own close, dup2, open, fopen and pthread_create, which call those of the system.
#include "host/plugin/intercept.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>

#include "host/base/claimed_descriptors.hpp"
#include "host/base/log.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/crash_report.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> guards = false, watches = false;

// Each sentence with its number of occurrences. Never freed: plugins may have threads that outlive everything.
struct Record {
  std::mutex mutex;
  std::map<std::string, int> descriptors, threads;
  std::map<std::string, std::string> files;  // by path
};
Record& record() {
  static Record& one = *new Record;
  return one;
}

std::string where_text() {
  const std::string call = call_in_progress();
  return call.empty() ? "" : " in " + call;
}

std::string text_of(int descriptor) {
  std::error_code error;
  return fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error).string();
}

// Whether the code at `caller` may not close the descriptor. Reports it.
[[maybe_unused]] bool refuses_to_close(int descriptor, const void* caller) noexcept {
  if (!guards.load(std::memory_order_relaxed) || !is_claimed_descriptor(descriptor)) return false;
  const char* const plugin = plugin_with_code_at(caller);
  if (plugin == nullptr || !is_guarded_process()) return false;
  const int error = errno;
  try {
    const std::string what = fmt::format("descriptor {} of the program ({})", descriptor, text_of(descriptor));
    if (watches) {
      const std::lock_guard lock(record().mutex);
      ++record().descriptors["it tried to close " + what + where_text()];
    } else {
      const std::string call = call_in_progress();
      counted_warning("descriptors of the program that plugins tried to close",
                      fmt::format("{} tried to close {}, which stays open", call.empty() ? plugin : call, what));
    }
  } catch (...) {  // no memory for the warning
  }
  errno = error;
  return true;
}

// Libraries through which a plugin may make a call: std::thread and others are not the plugin's own code.
bool is_of_language(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  const std::string_view path = info.dli_fname;
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return std::ranges::any_of(std::array<std::string_view, 4>{"libstdc++.", "libc++.", "libc.", "libpthread."},
                             [&](std::string_view library) { return name.starts_with(library); });
}

// The plugin whose code called a function of this file, directly or through a library of its language. `caller` is the
// return address of that function. NULL if no plugin called it.
const char* calling_plugin(const void* caller) {
  if (const char* const plugin = plugin_with_code_at(caller)) return plugin;
  if (!is_of_language(caller)) return nullptr;
  constexpr int kMaxFrames = 16;
  void* frames[kMaxFrames];
  void** const end = frames + ::backtrace(frames, kMaxFrames);
  for (void** at = std::find(frames, end, caller); at != end; ++at) {
    if (const char* const plugin = plugin_with_code_at(*at)) return plugin;
    if (!is_of_language(*at)) return nullptr;
  }
  return nullptr;
}

[[maybe_unused]] void note_thread(const void* caller) noexcept {
  if (!watches.load(std::memory_order_relaxed)) return;
  try {
    if (calling_plugin(caller) == nullptr) return;
    const std::lock_guard lock(record().mutex);
    ++record().threads["it started a thread" + where_text()];
  } catch (...) {  // no memory for the finding
  }
}

[[maybe_unused]] void note_file(const char* path, bool writes, const void* caller) noexcept {
  if (!writes || path == nullptr || !watches.load(std::memory_order_relaxed)) return;
  try {
    if (calling_plugin(caller) == nullptr) return;
    const std::string whole = fs::absolute(path).lexically_normal().string();
    const std::lock_guard lock(record().mutex);
    record().files.try_emplace(whole, where_text());
  } catch (...) {
  }
}

// The function of the same name in the next library: the system's, or one that the user has put before it. Rationale:
// takes no lock, since a thread inside dlopen() may call find(), and would wait for a thread that waits for the dynamic
// linker.
template <class F>
class SystemFunction {
 public:
  explicit constexpr SystemFunction(const char* name) : name_(name) {}
  F* find() {
    F* found = known_.load(std::memory_order_acquire);
    if (found == nullptr) {
      found = reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name_));
      known_.store(found, std::memory_order_release);
    }
    return found;
  }

 private:
  const char* name_;
  std::atomic<F*> known_ = nullptr;
};

using Open = int(const char*, int, ...);
using OpenStream = FILE*(const char*, const char*);
using CreateThread = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
constinit SystemFunction<int(int)> system_close("close");
constinit SystemFunction<int(int, int)> system_dup2("dup2");
constinit SystemFunction<int(int, int, int)> system_dup3("dup3");
constinit SystemFunction<int(unsigned, unsigned, int)> system_close_range("close_range");
constinit SystemFunction<void(int)> system_closefrom("closefrom");
constinit SystemFunction<CreateThread> system_pthread_create("pthread_create");
constinit SystemFunction<Open> system_open("open"), system_open64("open64");
constinit SystemFunction<OpenStream> system_fopen("fopen"), system_fopen64("fopen64");

// Descriptors from this number on are not guarded.
constexpr unsigned kMaxGuarded = 1 << 14;

// `made` now refers to another file, which is the program's unless a plugin made it.
[[maybe_unused]] int claimed_as_made(int made, const void* caller) noexcept {
  if (made < 0) return made;
  if (guards.load(std::memory_order_relaxed) && plugin_with_code_at(caller) == nullptr)
    claim_descriptor(made);
  else
    unclaim_descriptor(made);
  return made;
}

std::vector<std::string> counted(const std::map<std::string, int>& sentences) {
  std::vector<std::string> out;
  for (const auto& [text, count] : sentences)
    out.push_back(count == 1 ? text : fmt::format("{}, {} times", text, count));
  return out;
}

}  // namespace

void guard_descriptors() {
  if (guards.exchange(true)) return;
  // Looked up before a plugin's code runs, and so before the first call that may come from a signal handler.
  system_close.find(), system_dup2.find(), system_dup3.find(), system_close_range.find(), system_closefrom.find();
  system_pthread_create.find(), system_open.find(), system_open64.find(), system_fopen.find(), system_fopen64.find();
  claim_open_descriptors();
}

ActionWatch::ActionWatch(std::vector<std::string> folders) : folders_(std::move(folders)) {
  const std::lock_guard lock(record().mutex);
  record().descriptors.clear(), record().threads.clear(), record().files.clear();
  watches = true;
}
ActionWatch::~ActionWatch() { watches = false; }

PluginActions ActionWatch::actions() const {
  const std::lock_guard lock(record().mutex);
  PluginActions out{counted(record().descriptors), {}, counted(record().threads)};
  for (const auto& [path, where] : record().files) {
    const bool allowed = std::ranges::any_of(folders_, [&, &path = path](const std::string& folder) {
      return path == folder || path.starts_with(folder + "/");
    });
    std::error_code error;
    if (!allowed && fs::exists(path, error)) out.files.push_back(fmt::format("it wrote to {}{}", path, where));
  }
  return out;
}

}  // namespace chassis

// Sanitizers define functions of these names themselves.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHASSIS_HAS_INTERCEPTORS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define CHASSIS_HAS_INTERCEPTORS 1
#endif
#endif

#if !defined(CHASSIS_HAS_INTERCEPTORS)
extern "C" {

// Weak, so that a program that defines such a function itself, as tests do, keeps its own.
#define CHASSIS_INTERCEPT __attribute__((visibility("default"), weak))

CHASSIS_INTERCEPT int close(int descriptor) {
  if (chassis::refuses_to_close(descriptor, __builtin_return_address(0))) return errno = EBADF, -1;
  chassis::unclaim_descriptor(descriptor);
  return chassis::system_close.find()(descriptor);
}

CHASSIS_INTERCEPT int dup2(int from, int to) noexcept {
  const void* const caller = __builtin_return_address(0);
  if (from == to) return chassis::system_dup2.find()(from, to);
  if (chassis::refuses_to_close(to, caller)) return errno = EBADF, -1;
  return chassis::claimed_as_made(chassis::system_dup2.find()(from, to), caller);
}

CHASSIS_INTERCEPT int dup3(int from, int to, int flags) noexcept {
  const void* const caller = __builtin_return_address(0);
  if (chassis::refuses_to_close(to, caller)) return errno = EBADF, -1;
  return chassis::claimed_as_made(chassis::system_dup3.find()(from, to, flags), caller);
}

CHASSIS_INTERCEPT int close_range(unsigned first, unsigned last, int flags) noexcept {
  using chassis::kMaxGuarded;
  const void* const caller = __builtin_return_address(0);
  const auto system_range = chassis::system_close_range.find();
  const bool closes = (flags & CLOSE_RANGE_CLOEXEC) == 0;
  const bool is_plugin = closes && chassis::plugin_with_code_at(caller) != nullptr;
  for (unsigned at = first; closes && at <= std::min(last, kMaxGuarded - 1); ++at) {
    const int descriptor = static_cast<int>(at);
    if (!is_plugin)
      chassis::unclaim_descriptor(descriptor);
    else if (!chassis::refuses_to_close(descriptor, caller))
      ::syscall(SYS_close, at);
  }
  if (!is_plugin) return system_range(first, last, flags);
  return last >= kMaxGuarded ? system_range(std::max(first, kMaxGuarded), last, flags) : 0;
}

CHASSIS_INTERCEPT void closefrom(int first) noexcept {
  const void* const caller = __builtin_return_address(0);
  const auto system_closefrom = chassis::system_closefrom.find();
  constexpr int kMaxGuarded = chassis::kMaxGuarded;
  const bool is_plugin = chassis::plugin_with_code_at(caller) != nullptr;
  for (int at = std::max(first, 0); at < kMaxGuarded; ++at) {
    if (!is_plugin)
      chassis::unclaim_descriptor(at);
    else if (!chassis::refuses_to_close(at, caller))
      ::syscall(SYS_close, at);
  }
  system_closefrom(is_plugin ? std::max(first, kMaxGuarded) : first);
}

CHASSIS_INTERCEPT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                                     void* argument) noexcept {
  chassis::note_thread(__builtin_return_address(0));
  return chassis::system_pthread_create.find()(thread, attributes, body, argument);
}

#define CHASSIS_INTERCEPT_OPEN(name)                                                        \
  CHASSIS_INTERCEPT int name(const char* path, int flags, ...) {                            \
    mode_t mode = 0;                                                                        \
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {                       \
      va_list rest;                                                                         \
      va_start(rest, flags);                                                                \
      mode = va_arg(rest, mode_t);                                                          \
      va_end(rest);                                                                         \
    }                                                                                       \
    chassis::note_file(path, (flags & O_ACCMODE) != O_RDONLY, __builtin_return_address(0)); \
    return chassis::system_##name.find()(path, flags, mode);                                \
  }
CHASSIS_INTERCEPT_OPEN(open)
CHASSIS_INTERCEPT_OPEN(open64)

#define CHASSIS_INTERCEPT_FOPEN(name)                                                                             \
  CHASSIS_INTERCEPT FILE* name(const char* path, const char* mode) {                                              \
    const bool writes = mode != nullptr && std::string_view(mode).find_first_of("wa+") != std::string_view::npos; \
    chassis::note_file(path, writes, __builtin_return_address(0));                                                \
    return chassis::system_##name.find()(path, mode);                                                             \
  }
CHASSIS_INTERCEPT_FOPEN(fopen)
CHASSIS_INTERCEPT_FOPEN(fopen64)
}
#endif
