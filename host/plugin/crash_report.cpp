// Signal and exit handlers that report the plugin call in progress. Signal handlers allocate nothing.
#include "host/plugin/crash_report.hpp"

#include <execinfo.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "host/base/end_process.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/signal_stack.hpp"

namespace chassis {
namespace {

struct Code {
  uintptr_t begin = 0, end = 0;
  char text[512] = {};
};
constexpr size_t kMaxPlugins = 256;
constexpr int kMaxFrames = 64, kShownFrames = 16;

// Read by signal handlers. Entries are added in order and never change afterwards.
Code codes[kMaxPlugins];
std::atomic<size_t> num_codes = 0;

void write_text(const char* text) {
  if (::write(STDERR_FILENO, text, ::strlen(text)) < 0) return;
}

void write_address(uintptr_t address) {
  char digits[2 + 2 * sizeof address + 1] = "0x";
  size_t size = 2;
  int shift = 8 * sizeof address - 4;
  while (shift > 0 && (address >> shift) == 0) shift -= 4;
  for (; shift >= 0; shift -= 4) digits[size++] = "0123456789abcdef"[address >> shift & 15];
  digits[size] = '\0';
  write_text(digits);
}

const Code* plugin_at(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const size_t count = num_codes.load(std::memory_order_acquire);
  const Code* found =
      std::find_if(codes, codes + count, [&](const Code& code) { return code.begin <= at && at < code.end; });
  return found == codes + count ? nullptr : found;
}

// The thread's registers as the kernel saved them, which the unwinder reads too.
struct Registers {
#if defined(__x86_64__)
  explicit Registers(void* context) : saved(static_cast<ucontext_t*>(context)->uc_mcontext.gregs) {}
  uintptr_t code() const { return static_cast<uintptr_t>(saved[REG_RIP]); }
  uintptr_t stack() const { return static_cast<uintptr_t>(saved[REG_RSP]); }
  // Changes the registers as if the called function had returned.
  void return_from_call() {
    saved[REG_RIP] = *reinterpret_cast<greg_t*>(stack());
    saved[REG_RSP] += static_cast<greg_t>(sizeof(greg_t));
  }
  greg_t* saved;
#elif defined(__aarch64__)
  explicit Registers(void* context) : saved(static_cast<ucontext_t*>(context)->uc_mcontext) {}
  uintptr_t code() const { return saved.pc; }
  uintptr_t stack() const { return saved.sp; }
  void return_from_call() { saved.pc = saved.regs[30]; }
  mcontext_t& saved;
#endif
};

enum class Cause { kOther, kAddress, kBadCall, kStackOverflow };

Cause cause_of(int number, const siginfo_t& info, const Registers& at) {
  constexpr uintptr_t kNear = 64 * 1024;
  if ((number != SIGSEGV && number != SIGBUS) || info.si_code <= 0 || info.si_code == SI_KERNEL) return Cause::kOther;
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  if (address == at.code()) return Cause::kBadCall;
  if (address + kNear >= at.stack() && address <= at.stack() + kNear) return Cause::kStackOverflow;
  return Cause::kAddress;
}

void write_cause(Cause cause, const siginfo_t& info) {
  if (cause == Cause::kStackOverflow)
    return write_text(": the stack is exhausted (endless recursion, or a large array on it)");
  if (cause == Cause::kOther) return;
  write_text(cause == Cause::kBadCall ? ": call through a bad function pointer, to " : " at address ");
  write_address(reinterpret_cast<uintptr_t>(info.si_addr));
}

std::atomic<pid_t> crashing_thread = 0;
volatile sig_atomic_t reads_stack = 0;
sigjmp_buf stack_unreadable;

// Reads the stack, which may be damaged.
void write_stack(Cause cause, Registers at) {
  void* frames[kMaxFrames];
  if (cause == Cause::kBadCall) at.return_from_call();  // there is no code to unwind from
  const int count = ::backtrace(frames, kMaxFrames);
  const Code* plugin = nullptr;
  for (int i = 0; i < count && plugin == nullptr; ++i) plugin = plugin_at(frames[i]);
  write_text(plugin != nullptr ? "  in the code of " : "  outside the code of all plugins");
  if (plugin != nullptr) write_text(plugin->text);
  write_text("\n  stack, innermost first:\n");
  void** const crashed = std::find(frames, frames + count, reinterpret_cast<void*>(at.code()));
  // Frames before `crashed` belong to this handler.
  const int first = crashed == frames + count ? 0 : static_cast<int>(crashed - frames);
  ::backtrace_symbols_fd(frames + first, std::min(count - first, kShownFrames), STDERR_FILENO);
}

[[noreturn]] void end_with_signal(int number) {
  ::signal(number, SIG_DFL);
  ::raise(number);
  end_process(128 + number);
}

void on_crash(int number, siginfo_t* info, void* context) {
  const pid_t self = ::gettid();
  pid_t other = 0;
  if (!crashing_thread.compare_exchange_strong(other, self)) {
    while (other != self) ::pause();  // the first thread that crashed ends the process
    if (reads_stack) ::siglongjmp(stack_unreadable, 1);
    end_with_signal(number);
  }
  const Registers at(context);
  const Cause cause = cause_of(number, *info, at);
  // Starts with the parts that read only this thread's own data.
  write_text("error: ");
  write_text(::sigabbrev_np(number) != nullptr ? "SIG" : "a signal");
  if (::sigabbrev_np(number) != nullptr) write_text(::sigabbrev_np(number));
  write_cause(cause, *info);
  char call[512];
  if (describe_call(call, sizeof call) != 0) {
    write_text("\n  call in progress: ");
    write_text(call);
  }
  write_text("\n");
  if (sigsetjmp(stack_unreadable, 0) == 0) {
    reads_stack = 1;
    write_stack(cause, at);
  } else {
    write_text("  the stack cannot be read\n");
  }
  reads_stack = 0;
  end_with_signal(number);
}

std::atomic<pid_t> guarded_process = 0;  // 0: none. A child that a plugin forks is not guarded

// The program itself never calls exit() while it is guarded, so the caller is a plugin or a library.
void on_foreign_exit(const std::string& function) {
  pid_t self = ::getpid();
  if (!guarded_process.compare_exchange_strong(self, 0)) return;
  const std::string call = call_in_progress();
  log::set_level(log::Level::kError);  // `plugins check` has turned the log off
  log::error(
      "the process was ended by {} {}", function,
      call.empty() ? "while no plugin was called: by a library, or a thread that a plugin started" : "inside " + call);
  log::flush();
  end_process(static_cast<int>(ExitCode::kPlugin));
}

// Handlers run in reverse order of registration, so these run before those of the libraries loaded so far.
void register_exit_handlers() {
  ::on_exit([](int status, void*) { on_foreign_exit("exit(" + std::to_string(status) + ")"); }, nullptr);
  ::at_quick_exit([] { on_foreign_exit("quick_exit()"); });
}

}  // namespace

ExitGuard::ExitGuard() {
  register_exit_handlers();
  guarded_process = ::getpid();
}

ExitGuard::~ExitGuard() { guarded_process = 0; }

void ExitGuard::guard_copy() {
  if (guarded_process != 0) guarded_process = ::getpid();
}

void report_crashes() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  void* frames[1];
  ::backtrace(frames, 1);  // the first call allocates memory, which a signal handler may not
  begin_signal_stacks();
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = static_cast<int>(SA_ONSTACK | SA_NODEFER | SA_SIGINFO);
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) ::sigaction(number, &action, nullptr);
#endif
}

const char* plugin_with_code_at(const void* address) noexcept {
  const Code* const code = plugin_at(address);
  return code != nullptr ? code->text : nullptr;
}

bool is_guarded_process() noexcept { return guarded_process != 0 && guarded_process == ::getpid(); }

void register_plugin_code(const void* address, const std::string& label, const std::string& path) {
  if (guarded_process != 0) register_exit_handlers();
  const size_t index = num_codes.load();
  if (index == kMaxPlugins) return;
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
  const std::string text = label + " (" + path + ")";
  text.copy(code.text, sizeof code.text - 1);
  num_codes.store(index + 1, std::memory_order_release);
}

}  // namespace chassis

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Rationale: the dynamic linker prefers the program's own symbols, so a plugin that calls _exit() calls this function.
extern "C" {
__attribute__((visibility("default"))) void _exit(int status) {
  chassis::on_foreign_exit("_exit(" + std::to_string(status) + ")");
  chassis::end_process(status);
}
__attribute__((visibility("default"))) void _Exit(int status) noexcept { ::_exit(status); }
}
#endif
