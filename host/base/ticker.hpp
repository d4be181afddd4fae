// A thread that calls a function periodically.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "host/base/thread.hpp"

namespace chassis {

class Ticker {
 public:
  // Calls `tick` once per `period` on a separate thread, first after one period, until it returns false or the Ticker
  // is destroyed. `name` is that of the Thread. A tick that runs out of memory is skipped.
  Ticker(const char* name, std::chrono::milliseconds period, std::function<bool()> tick);
  ~Ticker();
  // Returns when `tick` will not be called again.
  void stop();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ended_ = false;
  Thread thread_;  // last, since it uses all of the above
};

}  // namespace chassis
