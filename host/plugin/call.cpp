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

// More threads than these call plugins without being seen.
std::array<CallSlot, 256> slots;
std::atomic<int64_t> step_now = 0;
std::atomic<bool> somebody_waits = false;

// Gives the slot back when the thread ends.
struct SlotOwner {
  CallSlot* slot = nullptr;
  CallSlot unseen;
  ~SlotOwner() {
    call_internal::slot = nullptr;
    if (slot != nullptr) slot->used.store(false, std::memory_order_release);
  }
};

// A text in a buffer of fixed size, made without memory, locks or locale.
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

size_t describe(std::string_view who, std::string_view node, const char* phase, int64_t unit, char* out,
                size_t num_bytes) noexcept {
  Text text(out, num_bytes);
  text << who << " in " << (phase != nullptr ? phase : "a call");
  if (!node.empty()) text << " of " << node;
  if (unit >= 0) text << " (unit " << unit << ")";
  if (const int64_t step = current_step(); step > 0) text << ", step " << step;
  return text.finish();
}

// Since when each slot has been in the call in which it is.
class WatchedCalls {
 public:
  WatchedCalls(std::chrono::milliseconds patience, std::function<void(const std::string&)> tell)
      : patience_(patience), tell_(std::move(tell)) {
    seen_.fill({0, Clock::now(), patience_});
  }

  bool look() {
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto now = Clock::now();
      const uint64_t serial = slots[i].serial.load(std::memory_order_acquire);
      const CallSite* const site = slots[i].site.load(std::memory_order_acquire);
      Seen& seen = seen_[i];
      if (site == nullptr || serial != seen.serial) {
        seen = {serial, now, patience_};
        continue;
      }
      const bool hurry = somebody_waits && !seen.told_who_waits && now - seen.since >= kShortPatience;
      if (!hurry && now - seen.since < seen.told_after) continue;
      char text[512];
      const size_t size =
          describe(site->who, site->node, slots[i].phase.load(), slots[i].unit.load(), text, sizeof text);
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - seen.since).count();
      tell_(fmt::format("{} has not returned for {} s", std::string_view(text, size), seconds));
      seen.told_who_waits = somebody_waits;
      while (seen.told_after <= now - seen.since) seen.told_after *= 4;
    }
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kShortPatience{2};
  struct Seen {
    uint64_t serial = 0;
    Clock::time_point since;
    Clock::duration told_after;
    bool told_who_waits = false;
  };
  std::chrono::milliseconds patience_;
  std::function<void(const std::string&)> tell_;
  std::array<Seen, std::tuple_size_v<decltype(slots)>> seen_;
};

}  // namespace

const CallSite& call_site(std::string_view who, std::string_view node) {
  // Rationale: process-wide and never freed, so that a signal handler may read a site at any time.
  static std::mutex& mutex = *new std::mutex;
  static auto& sites = *new std::map<std::pair<std::string, std::string>, std::unique_ptr<CallSite>>;
  const std::lock_guard lock(mutex);
  auto& site = sites[{std::string(who), std::string(node)}];
  if (!site) site = std::make_unique<CallSite>(CallSite{std::string(who), std::string(node)});
  return *site;
}

CallSlot& call_internal::claim_slot() noexcept {
  thread_local SlotOwner owner;
  slot = &owner.unseen;
  survive_stack_overflow();
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
void lose_patience_with_calls() noexcept { somebody_waits = true; }

size_t describe_call(char* out, size_t num_bytes) noexcept {
  const CallSlot* const own = call_internal::slot;
  const auto from = [&](const CallSlot& slot) -> size_t {
    const CallSite* const site = slot.site.load(std::memory_order_acquire);
    return site == nullptr ? 0 : describe(site->who, site->node, slot.phase.load(), slot.unit.load(), out, num_bytes);
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

CallWatch::CallWatch(std::chrono::milliseconds patience, std::function<void(const std::string&)> tell)
    : ticker_(std::min<std::chrono::milliseconds>(std::chrono::seconds(1), patience / 4),
              [watched = WatchedCalls(patience, std::move(tell))]() mutable { return watched.look(); }) {}

}  // namespace chassis
