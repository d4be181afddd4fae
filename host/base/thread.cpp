// Blocks the signals before a thread starts, since the thread inherits the mask.
#include "host/base/thread.hpp"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "host/base/end_process.hpp"
#include "host/base/log.hpp"

namespace chassis {
namespace {

// Freed before a failure is reported, which needs some memory.
constexpr size_t kReserveBytes = 1 << 20;

struct FailureReport {
  std::mutex mutex;
  std::function<void(const Error&)> report;
  std::unique_ptr<char[]> reserve;
};

// Process-wide like the log: a thread that fails has no other access to the run. Never destroyed, since threads may
// still run when the process ends.
FailureReport& failure_report() {
  static FailureReport* const instance = new FailureReport;
  return *instance;
}

void write_text(const char* text) noexcept {
  if (::write(STDERR_FILENO, text, ::strlen(text)) < 0) return;
}

}  // namespace

namespace thread_internal {

SignalsBlocked::SignalsBlocked() {
  sigset_t blocked;
  sigfillset(&blocked);
  // A fault of the thread itself: while blocked, it would end the process without the report of its handler.
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void name_this_thread(const char* name) noexcept {
  char shown[16] = {};  // the maximum of the system
  ::strncpy(shown, name, sizeof shown - 1);
  ::pthread_setname_np(::pthread_self(), shown);
}

void throw_no_start(const char* name) {
  Error error = current_error();
  if (error.code() != ExitCode::kOutOfMemory) throw;
  throw error.with("thread that cannot start", name);
}

}  // namespace thread_internal

Thread::Thread(const char* name, std::function<void()> body) {
  const thread_internal::SignalsBlocked blocked;
  try {
    thread_ = std::thread([name, body = std::move(body)] {
      thread_internal::name_this_thread(name);
      try {
        body();
      } catch (...) {
        end_for_failure_of(name);
      }
    });
  } catch (...) {
    thread_internal::throw_no_start(name);
  }
}

Thread::~Thread() {
  if (joinable()) join();
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (joinable()) join();
  thread_ = std::move(other.thread_);
  return *this;
}

ThreadFailures::ThreadFailures(std::function<void(const Error&)> report) {
  FailureReport& to = failure_report();
  const std::lock_guard lock(to.mutex);
  to.reserve = std::make_unique<char[]>(kReserveBytes);
  to.report = std::move(report);
}

ThreadFailures::~ThreadFailures() {
  FailureReport& to = failure_report();
  const std::lock_guard lock(to.mutex);
  to.report = nullptr;
  to.reserve.reset();
}

void end_for_failure_of(const char* thread) noexcept {
  int code = static_cast<int>(ExitCode::kOutOfMemory);
  try {
    FailureReport& to = failure_report();
    const std::lock_guard lock(to.mutex);  // held to the end: the first failure ends the process
    to.reserve.reset();
    const Error error = current_error().with("thread", thread);
    code = static_cast<int>(error.code());
    log::error("{}", error.what());
    if (to.report) to.report(error);
    log::flush();
    end_process(code);
  } catch (...) {  // no memory for the message
    write_text("error: out of host memory (thread: ");
    write_text(thread);
    write_text(")\n");
  }
  end_process(code);
}

}  // namespace chassis
