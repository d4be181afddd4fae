// Records what a rank does in some of its steps, and writes it in the trace event format of Chrome, which Perfetto
// opens (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). A run without log.trace has
// no recorder: code that would record holds a NULL pointer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace chassis {

enum class TraceTrack : uint8_t { kSteps, kData, kMicrobatches, kUnits, kNodes, kOptimizer, kSaves, kCollectives };

// A finished span. Its names are numbers that intern() returned.
struct TraceSpan {
  int64_t begin_ns = 0, end_ns = 0;  // on the steady clock
  uint32_t name = 0, category = 0;
  uint32_t by = 0;  // kNodes: the plugin; kCollectives: the group
  TraceTrack track = TraceTrack::kSteps;
  int microbatch = -1;     // -1: none
  int64_t unit = -1;       // likewise
  uint64_t bytes = 0;      // kCollectives: as CommCount::bytes
  uint64_t num_calls = 0;  // likewise
  int64_t wait_ns = 0;     // likewise: the caller's time in start and wait
};

class Trace {
 public:
  // `origin_ns`: the time on CLOCK_REALTIME that is time 0 of all ranks. Perfetto drops spans that begin before it.
  Trace(int rank, int64_t origin_ns);

  // [step] Spans are recorded while it is on.
  void turn(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }
  static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // [any]
  uint32_t intern(std::string_view name);
  void add(const TraceSpan& span);

  bool empty() const;
  uint64_t num_dropped() const;  // spans beyond the maximum that is kept
  // The JSON object. Spans of a track that overlap without nesting, as collectives do, get further rows.
  std::string json() const;

  static int64_t realtime_ns();

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  const int rank_;
  const int64_t offset_ns_;  // from the steady clock to the time of the trace
  std::atomic<bool> on_ = false;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> numbers_;
  std::vector<std::string> names_;
  std::vector<TraceSpan> spans_;
  uint64_t num_dropped_ = 0;
};

// Records its scope. Costs one branch without a trace.
class ScopedSpan {
 public:
  ScopedSpan(Trace* trace, TraceTrack track, std::string_view name, std::string_view category = {}, int microbatch = -1,
             int64_t unit = -1, std::string_view by = {}) {
    if (trace != nullptr && trace->on()) [[unlikely]]
      begin(*trace, track, name, category, microbatch, unit, by);
  }
  ~ScopedSpan() {
    if (trace_ != nullptr) [[unlikely]]
      end();
  }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

 private:
  void begin(Trace& trace, TraceTrack track, std::string_view name, std::string_view category, int microbatch,
             int64_t unit, std::string_view by);
  void end() noexcept;

  Trace* trace_ = nullptr;
  TraceSpan span_;
};

}  // namespace chassis
