// Calls tick() without holding the mutex.
#include "host/base/ticker.hpp"

#include <new>
#include <utility>

namespace chassis {

Ticker::Ticker(const char* name, std::chrono::milliseconds period, std::function<bool()> tick)
    : thread_(name, [this, period, tick = std::move(tick)] {
        std::unique_lock lock(mutex_);
        while (!ends_.wait_for(lock, period, [this] { return ended_; })) {
          lock.unlock();
          bool keep_running = true;
          try {
            keep_running = tick();
          } catch (const std::bad_alloc&) {  // the code that fills the memory reports it
          }
          lock.lock();
          if (!keep_running) return;
        }
      }) {}

Ticker::~Ticker() { stop(); }

void Ticker::stop() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ends_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace chassis
