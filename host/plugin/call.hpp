// Who is called right now: each thread says it before it enters a plugin, so that a crash, an exit, an interrupt or a
// call that does not return can be told with plugin, node, phase and step.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "host/base/ticker.hpp"

namespace chassis {

// A plugin, and the node it computes; node is empty outside of the program. Lives as long as the process.
struct CallSite {
  std::string who;   // "plugin 'sdpa' 0.1.0"
  std::string node;  // "layers.q_proj"
};

// [any] The same object for the same names.
const CallSite& call_site(std::string_view who, std::string_view node = {});

// What one thread is doing; written by that thread alone, read by signal handlers and the watch.
struct CallSlot {
  std::atomic<bool> used = false;
  std::atomic<const CallSite*> site = nullptr;
  std::atomic<const char*> phase = nullptr;
  std::atomic<int64_t> unit = -1;
  std::atomic<uint64_t> serial = 0;  // moves with every call and return
};

namespace call_internal {
extern constinit thread_local CallSlot* slot;
CallSlot& claim_slot() noexcept;
}  // namespace call_internal

// [any] A call into a plugin, for as long as it lives; `phase` is a literal. Calls may nest. Costs a few stores.
class PluginCall {
 public:
  PluginCall(const CallSite& site, const char* phase, int64_t unit = -1) noexcept
      : slot_(call_internal::slot != nullptr ? *call_internal::slot : call_internal::claim_slot()),
        outer_site_(slot_.site.load(std::memory_order_relaxed)),
        outer_phase_(slot_.phase.load(std::memory_order_relaxed)),
        outer_unit_(slot_.unit.load(std::memory_order_relaxed)) {
    set(&site, phase, unit);
  }
  ~PluginCall() { set(outer_site_, outer_phase_, outer_unit_); }
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

 private:
  void set(const CallSite* site, const char* phase, int64_t unit) noexcept {
    slot_.phase.store(phase, std::memory_order_relaxed);
    slot_.unit.store(unit, std::memory_order_relaxed);
    slot_.site.store(site, std::memory_order_release);
    slot_.serial.store(slot_.serial.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  CallSlot& slot_;
  const CallSite* outer_site_;
  const char* outer_phase_;
  int64_t outer_unit_;
};

// [any] The step in progress, for messages; 0: none.
void set_current_step(int64_t step) noexcept;
int64_t current_step() noexcept;

// [any] "plugin 'sdpa' 0.1.0 in forward of layers.q_proj (unit 3), step 17" of the calling thread, else of any other
// that is in a plugin; empty if none is. Allocates nothing and may be called by a signal handler. Returns the length.
size_t describe_call(char* out, size_t num_bytes) noexcept;
std::string call_in_progress();
// [any] " in forward (unit 3), step 17" of the calling thread; empty if it is in no plugin.
std::string own_call_phase();

// [any] From now on somebody waits: a call that does not return is told after 2 s. May be called by a signal handler.
void lose_patience_with_calls() noexcept;

// While it lives, a call that does not return is told: after `patience`, then after four times that, and so on.
class CallWatch {
 public:
  explicit CallWatch(std::chrono::milliseconds patience, std::function<void(const std::string&)> tell);

 private:
  Ticker ticker_;
};

}  // namespace chassis
