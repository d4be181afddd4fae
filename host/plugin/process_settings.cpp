// Reads, compares and restores the settings.
#include "host/plugin/process_settings.hpp"

#include <fenv.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "host/base/creation_limit.hpp"
#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/printable.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/crash_report.hpp"

namespace chassis {
namespace {

#if defined(__x86_64__)
constexpr uint64_t kFlags = 0x3f, kFlush = 0x8040, kRounding = 0x6000;
uint64_t float_mode() { return _mm_getcsr() & ~kFlags; }
void set_float_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode | (_mm_getcsr() & kFlags))); }
#elif defined(__aarch64__)
constexpr uint64_t kFlush = uint64_t{1} << 24, kRounding = uint64_t{3} << 22;
uint64_t float_mode() {
  uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_float_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
constexpr uint64_t kFlush = 0, kRounding = 0;
uint64_t float_mode() { return 0; }
void set_float_mode(uint64_t) {}
#endif

// Reads the line "Umask: 0022" of the kernel. While the umask is set to another value to read it, other threads may
// create files.
std::optional<unsigned> umask_of_kernel() {
  constexpr std::string_view kKey = "\nUmask:\t";
  std::string text(1024, '\0');
  try {
    const File status = File::open_read("/proc/self/status");
    text.resize(status.pread_some(text.data(), text.size(), 0));
  } catch (const Error&) {
    return std::nullopt;
  }
  const size_t at = text.find(kKey);
  unsigned mask = 0;
  if (at == std::string::npos) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data() + at + kKey.size(), text.data() + text.size(), mask, 8);
  return error == std::errc() ? std::optional(mask) : std::nullopt;
}

unsigned read_umask() {
  if (const auto mask = umask_of_kernel()) return *mask;
  const mode_t mask = ::umask(0077);
  ::umask(mask);
  return mask;
}

const char* rounding_text(const ProcessSettings& settings) {
  switch (settings.rounding) {
    case FE_TONEAREST:
      return (settings.float_mode & kRounding) == 0 ? "nearest" : "another mode of SSE";
    case FE_UPWARD:
      return "upward";
    case FE_DOWNWARD:
      return "downward";
    case FE_TOWARDZERO:
      return "toward zero";
  }
  return "another mode";
}

std::string handler_text(const struct sigaction& action) {
  if (action.sa_handler == SIG_DFL) return "the default";
  if (action.sa_handler == SIG_IGN) return "ignoring it";
  const auto* const code = reinterpret_cast<const void*>(action.sa_handler);
  const char* const plugin = plugin_with_code_at(code);
  return plugin != nullptr ? fmt::format("a function of {}", plugin) : "another function";
}

struct SettingChange {
  std::string text;               // "the umask from 0022 to 0000"
  const char* culprit = nullptr;  // the plugin with the new handler, if it has one
};

std::vector<SettingChange> changes_of(const ProcessSettings& expected, const ProcessSettings& now) {
  std::vector<SettingChange> changes;
  const uint64_t mode = expected.float_mode ^ now.float_mode;
  if (expected.rounding != now.rounding || (mode & kRounding) != 0)
    changes.push_back({fmt::format("the rounding of floating-point numbers from {} to {}", rounding_text(expected),
                                   rounding_text(now))});
  const auto flush_text = [](const ProcessSettings& settings) { return settings.float_mode & kFlush ? "on" : "off"; };
  if ((mode & kFlush) != 0)
    changes.push_back(
        {fmt::format("the flush of denormals to zero from {} to {}", flush_text(expected), flush_text(now))});
  if ((mode & ~(kFlush | kRounding)) != 0) changes.push_back({"the traps of floating-point numbers"});
  if (expected.umask != now.umask)
    changes.push_back({fmt::format("the umask from {:04o} to {:04o}", expected.umask, now.umask)});
  if (expected.folder_device != now.folder_device || expected.folder_inode != now.folder_inode)
    changes.push_back({fmt::format("the working directory from {} to {}", printable(expected.folder),
                                   printable(now.folder.empty() ? "one that was deleted" : now.folder))});
  for (size_t i = 0; i < expected.handlers.size(); ++i) {
    const struct sigaction &was = expected.handlers[i], &is = now.handlers[i];
    if (was.sa_handler == is.sa_handler) continue;
    const char* const name = ::sigabbrev_np(ProcessSettings::kSignals[i]);
    changes.push_back({fmt::format("the handler of SIG{} from {} to {}", name, handler_text(was), handler_text(is)),
                       plugin_with_code_at(reinterpret_cast<const void*>(is.sa_handler))});
  }
  return changes;
}

void restore(const ProcessSettings& expected) {
  ::fesetround(expected.rounding);
  set_float_mode(expected.float_mode);
  ::umask(static_cast<mode_t>(expected.umask));
  for (size_t i = 0; i < expected.handlers.size(); ++i)
    ::sigaction(ProcessSettings::kSignals[i], &expected.handlers[i], nullptr);
  if (!expected.folder.empty() && ::chdir(expected.folder.c_str()) != 0) return;  // the error names the directory
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
  return all;
}

}  // namespace

ProcessSettings read_process_settings() {
  ProcessSettings settings;
  settings.rounding = ::fegetround();
  settings.float_mode = float_mode();
  settings.umask = read_umask();
  struct stat info {};
  if (::stat(".", &info) == 0) settings.folder_device = info.st_dev, settings.folder_inode = info.st_ino;
  std::error_code ignored;
  settings.folder = std::filesystem::current_path(ignored).string();
  for (size_t i = 0; i < settings.handlers.size(); ++i)
    ::sigaction(ProcessSettings::kSignals[i], nullptr, &settings.handlers[i]);
  return settings;
}

void require_process_settings(const ProcessSettings& expected, const std::string& who, const std::string& when) {
  const ProcessSettings now = read_process_settings();
  ProcessSettings wanted = expected;
  wanted.umask |= withheld_mode();
  const std::vector<SettingChange> changes = changes_of(wanted, now);
  if (changes.empty()) return;
  restore(wanted);
  std::vector<std::string> texts;
  std::string culprit = who;
  for (const SettingChange& change : changes) {
    texts.push_back(change.text);
    if (culprit.empty() && change.culprit != nullptr) culprit = change.culprit;
  }
  const std::string what = fmt::format("changed {} {}", joined(texts), when);
  if (!culprit.empty()) throw plugin_error(fmt::format("{} {}", culprit, what));
  const std::string called = joined(called_plugins());
  throw plugin_error(fmt::format("a plugin {}{}{}", what, called.empty() ? "" : ": one of ", called))
      .hint("`chassis plugins check FILE` finds out which one does it");
}

}  // namespace chassis
