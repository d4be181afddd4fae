// Blocks the signals before the thread starts, which inherits the mask.
#include "host/base/thread.hpp"

#include <signal.h>

#include <utility>

namespace chassis {

std::thread thread_without_signals(std::function<void()> body) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  // A fault of the thread itself: while blocked, it would end the process without the report of its handler.
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace chassis
