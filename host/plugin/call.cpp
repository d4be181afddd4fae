// The slots in which threads record their plugin calls, and the watch that reports calls that do not return.
#include "host/plugin/call.hpp"

#include <fmt/core.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "host/plugin/signal_stack.hpp"

namespace chassis {

constinit thread_local CallSlot* call_internal::slot = nullptr;

namespace {

// Calls of further threads are not visible to other threads.
using Slots = std::array<CallSlot, 256>;
Slots own_slots;
std::atomic<int64_t> own_step = 0;
std::atomic<bool> user_waits = false;
// The slots and the step in use. In a process that another one watches, they lie in memory that both share. Set before
// the first thread starts.
Slots* slots = &own_slots;
std::atomic<int64_t>* step_now = &own_step;

constexpr size_t kMaxSharedSites = 2048;  // further sites are not recorded

// The call in which a thread has ended: exit() destroys the objects of its thread before it runs handlers.
std::atomic<const CallSlot*> left_slot = nullptr;

// Frees the slot when the thread ends.
struct SlotOwner {
  CallSlot* slot = nullptr;
  CallSlot hidden;  // used when all slots are taken
  ~SlotOwner() {
    call_internal::slot = nullptr;
    if (slot == nullptr) return;
    if (slot->site.load(std::memory_order_relaxed) != nullptr)
      left_slot = slot;
    else
      slot->used.store(false, std::memory_order_release);
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

size_t describe(std::string_view label, std::string_view node, const char* phase, int64_t unit, int64_t step, char* out,
                size_t num_bytes) noexcept {
  Text text(out, num_bytes);
  text << label << " in " << (phase != nullptr ? phase : "a call");
  if (!node.empty()) text << " of " << node;
  if (unit >= 0) text << " (unit " << unit << ")";
  if (step > 0) text << ", step " << step;
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
    for (size_t i = 0; i < slots->size(); ++i) {
      const CallSlot& slot = (*slots)[i];
      const auto now = Clock::now();
      const uint64_t serial = slot.serial.load(std::memory_order_acquire);
      const CallSite* const site = slot.site.load(std::memory_order_acquire);
      Seen& seen = seen_[i];
      if (site == nullptr || serial != seen.serial) {
        seen = {serial, now, first_report_after_};
        continue;
      }
      const bool report_now = user_waits && !seen.reported_to_waiting && now - seen.since >= kReportToWaitingAfter;
      if (!report_now && now - seen.since < seen.next_report_after) continue;
      char text[512];
      const size_t size =
          describe(site->label, site->node, slot.phase.load(), slot.unit.load(), current_step(), text, sizeof text);
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
  std::array<Seen, std::tuple_size_v<Slots>> seen_;
};

}  // namespace

struct SharedCalls::Board {
  // The texts of a call site, for another process, which cannot read this one's strings.
  struct Site {
    std::atomic<const CallSite*> site = nullptr;  // set last, when the texts are complete
    char label[112] = {}, node[136] = {};
  };
  std::atomic<bool> is_over = false;
  std::atomic<int64_t> step = 0;
  Slots slots;
  std::atomic<size_t> num_sites = 0;
  std::array<Site, kMaxSharedSites> sites;
};

namespace {

std::atomic<SharedCalls::Board*> own_board = nullptr;

// Requires the mutex of call_site().
void share_site(const CallSite& site) {
  SharedCalls::Board* const board = own_board.load();
  const size_t index = board != nullptr ? board->num_sites.load() : kMaxSharedSites;
  if (index == kMaxSharedSites) return;
  SharedCalls::Board::Site& shared = board->sites[index];
  site.label.copy(shared.label, sizeof shared.label - 1);
  site.node.copy(shared.node, sizeof shared.node - 1);
  shared.site = &site;
  board->num_sites = index + 1;
}

}  // namespace

SharedCalls::SharedCalls(int num_processes) : num_processes_(num_processes) {
  void* const memory = ::mmap(nullptr, sizeof(Board) * static_cast<size_t>(num_processes), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  // Rationale: the memory is zero, the initial value of all members but the units, which are set with a site.
  if (memory != MAP_FAILED) boards_ = static_cast<Board*>(memory);
}

SharedCalls::~SharedCalls() {
  if (boards_ != nullptr && own_board == nullptr)
    ::munmap(boards_, sizeof(Board) * static_cast<size_t>(num_processes_));
}

void SharedCalls::record_here(int index) const {
  if (boards_ == nullptr) return;
  own_board = &boards_[index];
  slots = &boards_[index].slots;
  step_now = &boards_[index].step;
  call_internal::slot = nullptr;  // claimed again by the next call
  // A process that a plugin forks is not a rank.
  ::pthread_atfork(nullptr, nullptr, [] {
    own_board = nullptr;
    slots = &own_slots, step_now = &own_step;
    call_internal::slot = nullptr;
  });
}

bool SharedCalls::is_over(int index) const { return boards_ == nullptr || boards_[index].is_over; }

std::string SharedCalls::last_call(int index) const {
  if (boards_ == nullptr) return "";
  const Board& board = boards_[index];
  for (const CallSlot& slot : board.slots) {
    const CallSite* const site = slot.site.load(std::memory_order_acquire);
    if (site == nullptr) continue;
    for (size_t i = 0; i < board.num_sites.load(); ++i) {
      const Board::Site& shared = board.sites[i];
      if (shared.site != site) continue;
      char text[512];
      // The phase is a literal of the program, which this process has at the same address.
      return std::string(text, describe(shared.label, shared.node, slot.phase.load(), slot.unit.load(),
                                        board.step.load(), text, sizeof text));
    }
  }
  return "";
}

void set_run_is_over() noexcept {
  if (SharedCalls::Board* const board = own_board.load()) board->is_over = true;
}

OwnCalls::OwnCalls()
    : slot_(call_internal::slot != nullptr ? call_internal::slot : &call_internal::claim_slot()),
      since_(std::chrono::steady_clock::now()) {}

RunningCall OwnCalls::running() {
  const auto now = std::chrono::steady_clock::now();
  const uint64_t serial = slot_->serial.load(std::memory_order_acquire);
  const CallSite* const site = slot_->site.load(std::memory_order_acquire);
  if (site == nullptr || serial != serial_) since_ = now;
  serial_ = serial;
  if (site == nullptr) return {};
  char text[512];
  const size_t size =
      describe(site->label, site->node, slot_->phase.load(), slot_->unit.load(), current_step(), text, sizeof text);
  return {std::string(text, size), std::chrono::duration_cast<std::chrono::seconds>(now - since_)};
}

namespace {

struct Sites {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<CallSite>> by_name;
};

Sites& all_sites() {
  // Rationale: process-wide and never freed, so that signal handlers may read a site at any time.
  static Sites& sites = *new Sites;
  return sites;
}

}  // namespace

std::vector<std::string> called_plugins() {
  Sites& sites = all_sites();
  const std::lock_guard lock(sites.mutex);
  std::vector<std::string> labels;
  for (const auto& [name, site] : sites.by_name)
    if (labels.empty() || labels.back() != name.first) labels.push_back(name.first);
  return labels;
}

const CallSite& call_site(std::string_view label, std::string_view node) {
  Sites& sites = all_sites();
  const std::lock_guard lock(sites.mutex);
  auto& site = sites.by_name[{std::string(label), std::string(node)}];
  if (!site) {
    site = std::make_unique<CallSite>(CallSite{std::string(label), std::string(node)});
    share_site(*site);
  }
  return *site;
}

CallSlot& call_internal::claim_slot() noexcept {
  thread_local SlotOwner owner;
  slot = &owner.hidden;
  install_signal_stack();
  for (CallSlot& free : *slots) {
    bool used = false;
    if (free.used.load(std::memory_order_relaxed) || !free.used.compare_exchange_strong(used, true)) continue;
    owner.slot = slot = &free;
    break;
  }
  return *slot;
}

void set_current_step(int64_t step) noexcept { step_now->store(step, std::memory_order_relaxed); }
int64_t current_step() noexcept { return step_now->load(std::memory_order_relaxed); }
void report_slow_calls_soon() noexcept { user_waits = true; }

size_t describe_call(char* out, size_t num_bytes) noexcept {
  const CallSlot* const own = call_internal::slot;
  const auto from = [&](const CallSlot& slot) -> size_t {
    const CallSite* const site = slot.site.load(std::memory_order_acquire);
    return site == nullptr
               ? 0
               : describe(site->label, site->node, slot.phase.load(), slot.unit.load(), current_step(), out, num_bytes);
  };
  for (const CallSlot* const first : {own, left_slot.load()})
    if (first != nullptr)
      if (const size_t size = from(*first)) return size;
  for (const CallSlot& slot : *slots)
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
  return std::string(text, describe({}, {}, own->phase.load(), own->unit.load(), current_step(), text, sizeof text));
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
