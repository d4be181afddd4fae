// The plugin calls in progress. Each thread records a call before it makes it, so that reports of a crash, an exit, an
// interrupt or a call that does not return can name plugin, node, phase and step.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/ticker.hpp"

namespace chassis {

// A plugin, and the node that it computes; `node` is empty for calls that compute no node. Never freed.
struct CallSite {
  std::string label;  // "plugin 'sdpa' 0.1.0"
  std::string node;   // "layers.q_proj"
};

// [any] Returns the same object for the same names.
const CallSite& call_site(std::string_view label, std::string_view node = {});
// [any] The labels of all plugins that have been called, in alphabetical order.
std::vector<std::string> called_plugins();

// The call that a thread is in. Written by that thread only; read by signal handlers and the watch.
struct CallSlot {
  std::atomic<bool> used = false;
  std::atomic<const CallSite*> site = nullptr;
  std::atomic<const char*> phase = nullptr;
  std::atomic<int64_t> unit = -1;
  std::atomic<uint64_t> serial = 0;  // changes with every call and return
};

namespace call_internal {
extern constinit thread_local CallSlot* slot;
CallSlot& claim_slot() noexcept;
}  // namespace call_internal

// [any] Marks a call into a plugin during its lifetime; `phase` is a literal. Calls may nest. Costs a few stores.
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

// [any] "plugin 'sdpa' 0.1.0 in forward of layers.q_proj (unit 3), step 17" for the calling thread, else for any other
// thread that is in a plugin; empty if none is. Returns the length. Allocates nothing; signal handlers may call it.
size_t describe_call(char* out, size_t num_bytes) noexcept;
std::string call_in_progress();
// [any] " in forward (unit 3), step 17" for the calling thread; empty if it is in no plugin.
std::string own_call_phase();
// [any] Whether the calling thread is in a call for a unit, or in any call during a step.
bool own_call_is_in_step() noexcept;

// The calls of processes that this one starts, in memory that they share: it remains readable after a process has
// ended, however that happened. Construct it before the processes are forked.
class SharedCalls {
 public:
  explicit SharedCalls(int num_processes);
  ~SharedCalls();
  SharedCalls(const SharedCalls&) = delete;
  SharedCalls& operator=(const SharedCalls&) = delete;

  // Called in process `index`, before its first call and its first thread: from now on its calls are recorded there.
  void record_here(int index) const;
  // Whether process `index` has called set_run_is_over().
  bool is_over(int index) const;
  // "plugin 'sdpa' 0.1.0 in forward of layers.q_proj (unit 3), step 17": the call that process `index` was in when it
  // ended, the first one found if several threads were in calls; empty if it was in none.
  std::string last_call(int index) const;

  struct Board;

 private:
  Board* boards_ = nullptr;  // NULL: there is no memory, so nothing is known
  int num_processes_ = 0;
};
// [control] Records that the process is about to end on purpose. Does nothing in a process whose calls are not shared.
void set_run_is_over() noexcept;

// A thread's call, as other threads see it.
struct RunningCall {
  std::string text;  // as describe_call(); empty: none
  std::chrono::seconds since{0};
};
// [control] Follows the calls of the thread that constructs it. running() may be called from one other thread.
class OwnCalls {
 public:
  OwnCalls();
  // The call that the thread is in, and for how long, counted from when this function first saw that call.
  RunningCall running();

 private:
  const CallSlot* slot_;
  uint64_t serial_ = 0;
  std::chrono::steady_clock::time_point since_;
};

// From now on a CallWatch reports calls that do not return within 2 s, since the user is waiting. Signal handlers may
// call it.
void report_slow_calls_soon() noexcept;

// During its lifetime, reports calls that do not return: after `first_report_after`, then at 4 times that, 16 times, ….
class CallWatch {
 public:
  explicit CallWatch(std::chrono::milliseconds first_report_after, std::function<void(const std::string&)> report);

 private:
  Ticker ticker_;
};

}  // namespace chassis
