// Threads of the host. They leave signals to the main thread, and no exception leaves them, since it would end the
// process without a message. tools/check-layering refuses threads that are started in another way.
#pragma once

#include <signal.h>

#include <functional>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {

class Thread {
 public:
  Thread() = default;
  // Starts a thread with all signals blocked except those of its own faults: the main thread receives the others.
  // `name` is a literal such as "data reader": messages contain it, and `top` shows its first 15 letters. Throws
  // kOutOfMemory with the name if no thread can start. An exception that leaves `body` ends the process as
  // end_for_failure_of() says.
  Thread(const char* name, std::function<void()> body);
  // Waits for the end of the thread.
  ~Thread();
  Thread(Thread&&) noexcept = default;
  Thread& operator=(Thread&& other) noexcept;

  bool joinable() const noexcept { return thread_.joinable(); }
  void join() { thread_.join(); }
  void detach() { thread_.detach(); }

 private:
  std::thread thread_;
};

// During its lifetime, `report` is called with the failure of a thread before the failure ends the process, so that
// other ranks learn of it. Runs on the thread that failed. Only one object at a time.
class ThreadFailures {
 public:
  explicit ThreadFailures(std::function<void(const Error&)> report);
  ~ThreadFailures();
  ThreadFailures(const ThreadFailures&) = delete;
  ThreadFailures& operator=(const ThreadFailures&) = delete;
};

namespace thread_internal {

// Blocks the signals of threads that are started during its lifetime.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

void name_this_thread(const char* name) noexcept;
// Called in a catch block. Throws kOutOfMemory with the name of the thread if no thread or no memory is left; rethrows
// any other exception.
[[noreturn]] void throw_no_start(const char* name);

}  // namespace thread_internal

// Reports the exception that is being handled, as an Error with the name of its thread, and ends the process with its
// code.
[[noreturn]] void end_for_failure_of(const char* thread) noexcept;

// Like std::async, with the start of a Thread: the future has the result of `body`, or the exception that it threw.
// With launch::deferred, `body` runs on the thread that calls get() or wait().
template <typename Body>
std::future<std::invoke_result_t<Body&>> run_async(std::launch policy, const char* name, Body body) {
  const thread_internal::SignalsBlocked blocked;
  try {
    if (policy == std::launch::deferred) return std::async(policy, std::move(body));
    return std::async(policy, [name, body = std::move(body)]() mutable {
      thread_internal::name_this_thread(name);
      return body();
    });
  } catch (...) {
    thread_internal::throw_no_start(name);
  }
}

}  // namespace chassis
