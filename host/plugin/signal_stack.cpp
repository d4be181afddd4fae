// The first thread's stack is static; those of others are mapped, and unmapped at their end.
#include "host/plugin/signal_stack.hpp"

#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>

namespace chassis {
namespace {

constexpr size_t kHandlerStackBytes = 64 * 1024;
alignas(16) char handler_stack[kHandlerStackBytes];  // for the first thread
std::atomic<bool> has_begun = false;

// A second stack, for the lifetime of the thread.
struct ThreadStack {
  void* memory = MAP_FAILED;
  ThreadStack() {
    stack_t now{};
    if (::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;  // it has one already
    memory = ::mmap(nullptr, kHandlerStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    const stack_t stack = {.ss_sp = memory, .ss_flags = 0, .ss_size = kHandlerStackBytes};
    ::sigaltstack(&stack, nullptr);
  }
  ~ThreadStack() {
    if (memory == MAP_FAILED) return;
    const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    if (::sigaltstack(&none, nullptr) == 0) ::munmap(memory, kHandlerStackBytes);
  }
};

}  // namespace

void begin_signal_stacks() {
  const stack_t stack = {.ss_sp = handler_stack, .ss_flags = 0, .ss_size = sizeof handler_stack};
  ::sigaltstack(&stack, nullptr);
  has_begun = true;
}

void install_signal_stack() noexcept {
  if (has_begun.load(std::memory_order_relaxed)) static thread_local const ThreadStack stack;
}

}  // namespace chassis
