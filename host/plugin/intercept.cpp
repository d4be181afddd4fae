// The program's own close, dup2, open, fopen and pthread_create, which call those of the system.
#include "host/plugin/intercept.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sys/stat.h>
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

// By sentence, with the number of times. Never freed: plugins may have threads that outlive everything.
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
bool refuses_to_close(int descriptor, const void* caller) noexcept {
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

// Of the libraries through which a plugin calls: std::thread and others are not its own code.
bool is_of_language(const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return false;
  const std::string_view path = info.dli_fname;
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return std::ranges::any_of(std::array<std::string_view, 4>{"libstdc++.", "libc++.", "libc.", "libpthread."},
                             [&](std::string_view library) { return name.starts_with(library); });
}

// The plugin whose code has called a function of this file, itself or through a library of its language; `caller` is
// where that function returns to. NULL: none.
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

void note_thread(const void* caller) noexcept {
  if (!watches.load(std::memory_order_relaxed)) return;
  try {
    if (calling_plugin(caller) == nullptr) return;
    const std::lock_guard lock(record().mutex);
    ++record().threads["it started a thread" + where_text()];
  } catch (...) {  // no memory for the finding
  }
}

void note_file(const char* path, bool writes, const void* caller) noexcept {
  if (!writes || path == nullptr || !watches.load(std::memory_order_relaxed)) return;
  try {
    if (calling_plugin(caller) == nullptr) return;
    const std::string whole = fs::absolute(path).lexically_normal().string();
    const std::lock_guard lock(record().mutex);
    record().files.try_emplace(whole, where_text());
  } catch (...) {
  }
}

// Of the same name in the next library: the system's, or one that the user has put before it.
template <class F>
F* system_function(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
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

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {

#define CHASSIS_INTERCEPT __attribute__((visibility("default")))

CHASSIS_INTERCEPT int close(int descriptor) {
  if (chassis::refuses_to_close(descriptor, __builtin_return_address(0))) return errno = EBADF, -1;
  chassis::unclaim_descriptor(descriptor);
  static const auto system_close = chassis::system_function<int(int)>("close");
  return system_close(descriptor);
}

CHASSIS_INTERCEPT int dup2(int from, int to) noexcept {
  if (from != to && chassis::refuses_to_close(to, __builtin_return_address(0))) return errno = EBADF, -1;
  static const auto system_dup2 = chassis::system_function<int(int, int)>("dup2");
  return system_dup2(from, to);
}

CHASSIS_INTERCEPT int close_range(unsigned first, unsigned last, int flags) noexcept {
  const void* const caller = __builtin_return_address(0);
  constexpr unsigned kMaxGuarded = 1 << 14;
  static const auto system_range = chassis::system_function<int(unsigned, unsigned, int)>("close_range");
  if (flags != 0 || chassis::plugin_with_code_at(caller) == nullptr) return system_range(first, last, flags);
  for (unsigned at = first; at <= std::min(last, kMaxGuarded - 1); ++at)
    if (!chassis::refuses_to_close(static_cast<int>(at), caller)) ::syscall(SYS_close, at);
  return last >= kMaxGuarded ? system_range(std::max(first, kMaxGuarded), last, flags) : 0;
}

CHASSIS_INTERCEPT void closefrom(int first) noexcept {
  const void* const caller = __builtin_return_address(0);
  static const auto system_closefrom = chassis::system_function<void(int)>("closefrom");
  if (chassis::plugin_with_code_at(caller) == nullptr) return system_closefrom(first);
  constexpr int kMaxGuarded = 1 << 14;
  for (int at = std::max(first, 0); at < kMaxGuarded; ++at)
    if (!chassis::refuses_to_close(at, caller)) ::syscall(SYS_close, at);
  system_closefrom(std::max(first, kMaxGuarded));
}

CHASSIS_INTERCEPT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                                     void* argument) noexcept {
  chassis::note_thread(__builtin_return_address(0));
  using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto system_create = chassis::system_function<Create>("pthread_create");
  return system_create(thread, attributes, body, argument);
}

#define CHASSIS_INTERCEPT_OPEN(name)                                                             \
  CHASSIS_INTERCEPT int name(const char* path, int flags, ...) {                                 \
    mode_t mode = 0;                                                                             \
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {                                                  \
      va_list rest;                                                                              \
      va_start(rest, flags);                                                                     \
      mode = va_arg(rest, mode_t);                                                               \
      va_end(rest);                                                                              \
    }                                                                                            \
    chassis::note_file(path, (flags & O_ACCMODE) != O_RDONLY, __builtin_return_address(0));      \
    static const auto system_open = chassis::system_function<int(const char*, int, ...)>(#name); \
    return system_open(path, flags, mode);                                                       \
  }
CHASSIS_INTERCEPT_OPEN(open)
CHASSIS_INTERCEPT_OPEN(open64)

#define CHASSIS_INTERCEPT_FOPEN(name)                                                                             \
  CHASSIS_INTERCEPT FILE* name(const char* path, const char* mode) {                                              \
    const bool writes = mode != nullptr && std::string_view(mode).find_first_of("wa+") != std::string_view::npos; \
    chassis::note_file(path, writes, __builtin_return_address(0));                                                \
    static const auto system_fopen = chassis::system_function<FILE*(const char*, const char*)>(#name);            \
    return system_fopen(path, mode);                                                                              \
  }
CHASSIS_INTERCEPT_FOPEN(fopen)
CHASSIS_INTERCEPT_FOPEN(fopen64)
}
#endif
