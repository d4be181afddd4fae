// The slots in which threads record their plugin calls, and the watch that reports calls that do not return.
#include "host/plugin/call.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "host/plugin/crash_report.hpp"

namespace chassis {

constinit thread_local CallSlot* call_internal::slot = nullptr;

namespace {

// Calls of further threads are not visible to other threads.
std::array<CallSlot, 256> slots;
std::atomic<int64_t> step_now = 0;
std::atomic<bool> user_waits = false;

// Frees the slot when the thread ends.
struct SlotOwner {
  CallSlot* slot = nullptr;
  CallSlot hidden;  // used when all slots are taken
  ~SlotOwner() {
    call_internal::slot = nullptr;
    if (slot != nullptr) slot->used.store(false, std::memory_order_release);
  }
};

// Writes text to a buffer of fixed size, without allocation, locks or locale.
class Text {
 public:
  Text(char* out, size_t num_bytes) : out_(out), room_(num_bytes == 0 ? 0 : num_bytes - 1) {}
  Text& operator<<(std::string_view text) {
    const size_t count = std::min(text.size(), room_ - size_);
    std::copy_n(text.data(), count, out_ + size_);
    size_ += count;
    return *this;
  }
  Text& operator<<(int64_t number) {
    char digits[20];
    size_t first = sizeof digits;
    do digits[--first] = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    return *this << std::string_view(digits + first, sizeof digits - first);
  }
  size_t finish() {
    if (out_ != nullptr) out_[size_] = '\0';
    return size_;
  }

 private:
  char* out_;
  size_t room_, size_ = 0;
};

size_t describe(std::string_view label, std::string_view node, const char* phase, int64_t unit, char* out,
                size_t num_bytes) noexcept {
  Text text(out, num_bytes);
  text << label << " in " << (phase != nullptr ? phase : "a call");
  if (!node.empty()) text << " of " << node;
  if (unit >= 0) text << " (unit " << unit << ")";
  if (const int64_t step = current_step(); step > 0) text << ", step " << step;
  return text.finish();
}

// How long each slot has been in its current call, and when to report it.
class WatchedCalls {
 public:
  WatchedCalls(std::chrono::milliseconds first_report_after, std::function<void(const std::string&)> report)
      : first_report_after_(first_report_after), report_(std::move(report)) {
    seen_.fill({0, Clock::now(), first_report_after_});
  }

  bool check() {
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto now = Clock::now();
      const uint64_t serial = slots[i].serial.load(std::memory_order_acquire);
      const CallSite* const site = slots[i].site.load(std::memory_order_acquire);
      Seen& seen = seen_[i];
      if (site == nullptr || serial != seen.serial) {
        seen = {serial, now, first_report_after_};
        continue;
      }
      const bool report_now = user_waits && !seen.reported_to_waiting && now - seen.since >= kReportToWaitingAfter;
      if (!report_now && now - seen.since < seen.next_report_after) continue;
      char text[512];
      const size_t size =
          describe(site->label, site->node, slots[i].phase.load(), slots[i].unit.load(), text, sizeof text);
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - seen.since).count();
      report_(fmt::format("{} has not returned for {} s", std::string_view(text, size), seconds));
      seen.reported_to_waiting = user_waits;
      while (seen.next_report_after <= now - seen.since) seen.next_report_after *= 4;
    }
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kReportToWaitingAfter{2};
  struct Seen {
    uint64_t serial = 0;
    Clock::time_point since;
    Clock::duration next_report_after;
    bool reported_to_waiting = false;
  };
  std::chrono::milliseconds first_report_after_;
  std::function<void(const std::string&)> report_;
  std::array<Seen, std::tuple_size_v<decltype(slots)>> seen_;
};

}  // namespace

const CallSite& call_site(std::string_view label, std::string_view node) {
  // Rationale: process-wide and never freed, so that signal handlers may read a site at any time.
  static std::mutex& mutex = *new std::mutex;
  static auto& sites = *new std::map<std::pair<std::string, std::string>, std::unique_ptr<CallSite>>;
  const std::lock_guard lock(mutex);
  auto& site = sites[{std::string(label), std::string(node)}];
  if (!site) site = std::make_unique<CallSite>(CallSite{std::string(label), std::string(node)});
  return *site;
}

CallSlot& call_internal::claim_slot() noexcept {
  thread_local SlotOwner owner;
  slot = &owner.hidden;
  install_signal_stack();
  for (CallSlot& free : slots) {
    bool used = false;
    if (free.used.load(std::memory_order_relaxed) || !free.used.compare_exchange_strong(used, true)) continue;
    owner.slot = slot = &free;
    break;
  }
  return *slot;
}

void set_current_step(int64_t step) noexcept { step_now.store(step, std::memory_order_relaxed); }
int64_t current_step() noexcept { return step_now.load(std::memory_order_relaxed); }
void report_slow_calls_soon() noexcept { user_waits = true; }

size_t describe_call(char* out, size_t num_bytes) noexcept {
  const CallSlot* const own = call_internal::slot;
  const auto from = [&](const CallSlot& slot) -> size_t {
    const CallSite* const site = slot.site.load(std::memory_order_acquire);
    return site == nullptr ? 0 : describe(site->label, site->node, slot.phase.load(), slot.unit.load(), out, num_bytes);
  };
  if (own != nullptr)
    if (const size_t size = from(*own)) return size;
  for (const CallSlot& slot : slots)
    if (const size_t size = from(slot)) return size;
  return Text(out, num_bytes).finish();
}

std::string call_in_progress() {
  char text[512];
  return std::string(text, describe_call(text, sizeof text));
}

std::string own_call_phase() {
  const CallSlot* const own = call_internal::slot;
  if (own == nullptr || own->site.load(std::memory_order_relaxed) == nullptr) return "";
  char text[256];
  return std::string(text, describe({}, {}, own->phase.load(), own->unit.load(), text, sizeof text));
}

bool own_call_is_in_step() noexcept {
  const CallSlot* const own = call_internal::slot;
  if (own == nullptr || own->site.load(std::memory_order_relaxed) == nullptr) return false;
  return own->unit.load(std::memory_order_relaxed) >= 0 || current_step() > 0;
}

CallWatch::CallWatch(std::chrono::milliseconds first_report_after, std::function<void(const std::string&)> report)
    : ticker_("call watch", std::min<std::chrono::milliseconds>(std::chrono::seconds(1), first_report_after / 4),
              [watched = WatchedCalls(first_report_after, std::move(report))]() mutable { return watched.check(); }) {}

}  // namespace chassis
