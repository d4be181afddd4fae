// Ends a rank that goes on although its run has failed: one that computes, reads or hangs where it asks nobody.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "host/launch/world.hpp"

namespace chassis {

class Watchdog {
 public:
  // [control] `world` has several ranks and outlives it. Until it is destroyed, a thread asks every second whether
  // another rank has failed, or the store is lost; if it is not destroyed within 8 s of that, the process ends with the
  // exit code of that failure, which is told on stderr.
  explicit Watchdog(World& world);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();

  World& world_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace chassis
