// A thread that looks at something from time to time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace chassis {

class Ticker {
 public:
  // Calls `tick` once per `period`, first after one, on a thread of its own, until it returns false or this goes.
  Ticker(std::chrono::milliseconds period, std::function<bool()> tick);
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ended_ = false;
  std::thread thread_;  // last, since it uses all of the above
};

}  // namespace chassis
