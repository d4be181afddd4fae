// Blocks the signals before the thread starts, which inherits the mask.
#include "host/base/thread.hpp"

#include <signal.h>

#include <utility>

namespace chassis {

std::thread thread_without_signals(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace chassis
