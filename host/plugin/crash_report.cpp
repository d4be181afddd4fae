#include "host/plugin/crash_report.hpp"

#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/plugin/call.hpp"

namespace chassis {
namespace {

struct Code {
  uintptr_t begin = 0, end = 0;
  char text[512] = {};
};
constexpr size_t kMostPlugins = 256;
constexpr int kMostFrames = 64, kShownFrames = 16;

// Read by signal handlers: filled in order, and never changed afterwards.
Code codes[kMostPlugins];
std::atomic<size_t> num_codes = 0;

alignas(16) char handler_stack[64 * 1024];  // a stack that overflowed is of no use

void write_text(const char* text) {
  if (::write(STDERR_FILENO, text, ::strlen(text)) < 0) return;
}

const Code* plugin_at(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const size_t count = num_codes.load(std::memory_order_acquire);
  const Code* found =
      std::find_if(codes, codes + count, [&](const Code& code) { return code.begin <= at && at < code.end; });
  return found == codes + count ? nullptr : found;
}

void on_crash(int number) {
  void* frames[kMostFrames];
  const int count = ::backtrace(frames, kMostFrames);
  const Code* plugin = nullptr;
  for (int i = 0; i < count && plugin == nullptr; ++i) plugin = plugin_at(frames[i]);
  char call[512];
  const bool in_call = describe_call(call, sizeof call) != 0;
  write_text("error: ");
  write_text(::sigabbrev_np(number) != nullptr ? "SIG" : "a signal");
  if (::sigabbrev_np(number) != nullptr) write_text(::sigabbrev_np(number));
  write_text(plugin != nullptr ? " in " : " outside of all plugins");
  if (plugin != nullptr) write_text(plugin->text);
  if (in_call) {
    write_text("\n  call in progress: ");
    write_text(call);
  }
  write_text("\n  stack, innermost first:\n");
  // The first frames are those of this handler and of the return from the signal.
  const int first = std::min(count, 2);
  ::backtrace_symbols_fd(frames + first, std::min(count - first, kShownFrames), STDERR_FILENO);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

std::atomic<pid_t> guarded_process = 0;  // none; a child that a plugin forks may end as it likes

// Whoever calls exit() inside the program, it was not the program.
void on_foreign_exit(const std::string& how) {
  pid_t self = ::getpid();
  if (!guarded_process.compare_exchange_strong(self, 0)) return;
  const std::string call = call_in_progress();
  log::error("the process was ended by {} {}", how,
             call.empty() ? "while no plugin was called: by a library, or a thread that a plugin started" : "inside of " + call);
  log::flush();
  ::_exit(static_cast<int>(ExitCode::kPlugin));
}

// Handlers run in reverse order: ours are to come before those of libraries that were loaded so far.
void come_first_at_exit() {
  ::on_exit([](int status, void*) { on_foreign_exit("exit(" + std::to_string(status) + ")"); }, nullptr);
  ::at_quick_exit([] { on_foreign_exit("quick_exit()"); });
}

}  // namespace

ExitGuard::ExitGuard() {
  come_first_at_exit();
  guarded_process = ::getpid();
}

ExitGuard::~ExitGuard() { guarded_process = 0; }

void report_crashes() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  void* frames[1];
  ::backtrace(frames, 1);  // loads what it needs while memory can be had
  const stack_t stack = {.ss_sp = handler_stack, .ss_flags = 0, .ss_size = sizeof handler_stack};
  ::sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = static_cast<int>(SA_ONSTACK | SA_NODEFER);
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::sigaction(number, &action, nullptr);
#endif
}

void name_code(const void* address, const std::string& who, const std::string& path) {
  if (guarded_process != 0) come_first_at_exit();
  const size_t index = num_codes.load();
  if (index == kMostPlugins) return;
  Code& code = codes[index];
  struct Search {
    uintptr_t at;
    Code& code;
  } search{reinterpret_cast<uintptr_t>(address), code};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& segment = info->dlpi_phdr[i];
          const uintptr_t begin = info->dlpi_addr + segment.p_vaddr, end = begin + segment.p_memsz;
          if (segment.p_type != PT_LOAD || search.at < begin || search.at >= end) continue;
          search.code.begin = begin, search.code.end = end;
          return 1;
        }
        return 0;
      },
      &search);
  if (code.begin == 0) return;
  const std::string text = who + " (" + path + ")";
  text.copy(code.text, sizeof code.text - 1);
  num_codes.store(index + 1, std::memory_order_release);
}

}  // namespace chassis
