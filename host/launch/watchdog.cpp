// Asks the world once per second, then gives the rank some time to end by itself.
#include "host/launch/watchdog.hpp"

#include <fmt/format.h>

#include <chrono>
#include <new>

#include "host/base/end_process.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

constexpr auto kInterval = 1s, kTimeToStop = 8s, kLongCall = 2s;

}  // namespace

Watchdog::Watchdog(World& world) : world_(world), thread_("watchdog", [this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ending_.notify_all();
  thread_.join();
}

void Watchdog::watch() {
  const auto is_over_within = [this](std::chrono::seconds time) {
    std::unique_lock lock(mutex_);
    return ending_.wait_for(lock, time, [this] { return is_over_; });
  };
  while (!is_over_within(kInterval)) {
    try {
      world_.throw_if_another_failed();
      say_call();
    } catch (const Error& failure) {
      if (is_over_within(kTimeToStop)) return;
      try {
        const RunningCall call = calls_.running();
        log::error("stopped: {}; this rank did not stop within {} s and is ended{}", failure.message(),
                   kTimeToStop.count(), call.text.empty() ? "" : "; it was inside " + call.text);
      } catch (const std::bad_alloc&) {  // the exit code still reports it
      }
      end_process(static_cast<int>(failure.code()));
    } catch (const std::bad_alloc&) {  // the training thread reports it; asks again after a second
    }
  }
}

void Watchdog::say_call() {
  const RunningCall call = calls_.running();
  const bool is_long = !call.text.empty() && call.since >= kLongCall;
  if (!is_long && !has_said_call_) return;
  world_.say_call(is_long ? fmt::format("{} for {} s", call.text, call.since.count()) : "");
  has_said_call_ = is_long;
}

}  // namespace chassis
