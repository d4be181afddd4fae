// Ends a rank that continues although its run has failed, because it computes, reads or hangs without checking.
#pragma once

#include <condition_variable>
#include <mutex>

#include "host/base/thread.hpp"
#include "host/launch/world.hpp"
#include "host/plugin/call.hpp"

namespace chassis {

class Watchdog {
 public:
  // [control] `world` has several ranks and outlives the watchdog. A thread checks every second whether another rank
  // has failed or the store is lost. If the watchdog is not destroyed within 8 s after that, the process reports the
  // failure on stderr and ends with its exit code. Once the thread that made the watchdog has been in a call of a
  // plugin for some seconds, the other ranks are told which call it is, so that those that wait for this rank can
  // report it.
  explicit Watchdog(World& world);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();

  void say_call();

  World& world_;
  OwnCalls calls_;  // calls of the thread that made it
  bool has_said_call_ = false;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool is_over_ = false;
  Thread thread_;  // last: it uses all of the above
};

}  // namespace chassis
