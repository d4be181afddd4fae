// Runs the collectives of comm_cases on several ranks and compares the results.
#include "host/conformance/comm_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/thread.hpp"
#include "host/conformance/comm_cases.hpp"
#include "host/plugin/status.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
using namespace comm_cases;

constexpr auto kDeadline = std::chrono::seconds(20);
constexpr std::chrono::nanoseconds kSlice = std::chrono::milliseconds(100);

// A key-value store in memory, shared by the ranks of all groups.
class MemoryStore {
 public:
  void set(const std::string& key, std::string value) {
    const std::lock_guard lock(mutex_);
    values_[key] = std::move(value);
    changed_.notify_all();
  }
  // None if the key was not set in time, or a rank failed.
  std::optional<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::min<std::chrono::nanoseconds>(timeout, kDeadline),
                      [&] { return failed_ || values_.contains(key); });
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }
  int64_t add(const std::string& key, int64_t amount) {
    const std::lock_guard lock(mutex_);
    return counters_[key] += amount;
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }
  bool failed() {
    const std::lock_guard lock(mutex_);
    return failed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
  bool failed_ = false;
};

// The store table of one group: keys have the group's prefix.
class StoreTable {
 public:
  StoreTable(MemoryStore& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.set = [](const chassis_store_t* s, chassis_str_t key, chassis_str_t value) {
      return guarded([&] { self(s).store_.set(self(s).key(key), std::string(view_of(value))); });
    };
    table_.get = [](const chassis_store_t* s, chassis_str_t key, uint64_t timeout_ns,
                    void (*take)(void*, chassis_str_t), void* context) -> chassis_status_t* {
      constexpr uint64_t kLongest = 3'600'000'000'000;
      const auto value = self(s).store_.get(self(s).key(key), std::chrono::nanoseconds(std::min(timeout_ns, kLongest)));
      if (value)
        take(context, str_of(*value));
      else if (self(s).store_.failed())
        return make_status(CHASSIS_ABORTED, "another rank failed");
      else
        return make_status(CHASSIS_DEADLINE_EXCEEDED, "no rank wrote '" + self(s).key(key) + "'");
      return nullptr;
    };
    table_.add = [](const chassis_store_t* s, chassis_str_t key, int64_t amount, int64_t* out) {
      return guarded([&] { *out = self(s).store_.add(self(s).key(key), amount); });
    };
  }
  StoreTable(const StoreTable&) = delete;
  StoreTable& operator=(const StoreTable&) = delete;
  const chassis_store_t* get() const { return &table_; }

 private:
  static StoreTable& self(const chassis_store_t* s) { return *static_cast<StoreTable*>(s->impl); }
  std::string key(chassis_str_t name) const { return prefix_ + std::string(view_of(name)); }
  MemoryStore& store_;
  const std::string prefix_;
  chassis_store_t table_{};
};

// One rank of a group. The constructor creates the group, the destructor destroys it.
class GroupRank {
 public:
  GroupRank(const CommSubject& subject, MemoryStore& shared, const std::string& name, int rank, int size)
      : subject_(subject), shared_(shared), store_(shared, name + "/"), name_(name), rank_(rank), size_(size) {
    chassis_comm_group_desc_t desc{};
    desc.struct_size = sizeof desc;
    desc.size = static_cast<uint32_t>(size);
    desc.rank = static_cast<uint32_t>(rank);
    desc.device_type = CHASSIS_DEVICE_CPU;
    desc.name = str_of(name_);
    desc.store = moves_nothing() ? nullptr : store_.get();
    desc.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(kDeadline).count());
    desc.host = str_of("127.0.0.1");
    throw_if_failed(subject.table->create_group(subject.self, &desc, &group_), subject.label + ": create_group");
    if (group_ == nullptr) throw plugin_error(subject.label + ": create_group returned no group and no error");
  }
  ~GroupRank() { subject_.table->destroy_group(subject_.self, group_); }
  GroupRank(const GroupRank&) = delete;
  GroupRank& operator=(const GroupRank&) = delete;

  bool moves_nothing() const { return (subject_.table->properties & CHASSIS_COMM_MOVES_NOTHING) != 0; }

  chassis_backend_work_t* start(const std::vector<chassis_collective_t>& calls) {
    chassis_backend_work_t* work = nullptr;
    std::vector<const chassis_collective_t*> batch;
    for (const chassis_collective_t& call : calls) batch.push_back(&call);
    throw_if_failed(
        subject_.table->start(subject_.self, group_, batch.data(), static_cast<uint32_t>(batch.size()), nullptr, &work),
        subject_.label + ": start");
    if (work == nullptr) throw plugin_error(subject_.label + ": start returned no work and no error");
    return work;
  }
  // Waits for the work, then releases it, also after an error.
  void finish(chassis_backend_work_t* work, const std::string& what) {
    const auto deadline = Clock::now() + kDeadline;
    for (;;) {
      chassis_status_t* status = subject_.table->wait(subject_.self, work, static_cast<uint64_t>(kSlice.count()));
      if (status == nullptr) break;
      if (status_code(status) == CHASSIS_DEADLINE_EXCEEDED && Clock::now() < deadline && !shared_.failed()) {
        status_release(status);
        continue;
      }
      subject_.table->abort(subject_.self, group_);
      subject_.table->release(subject_.self, work);
      throw_if_failed(status, fmt::format("{}: {}", subject_.label, what));
    }
    const bool done = subject_.table->done(subject_.self, work) != 0;
    subject_.table->release(subject_.self, work);
    if (!done) throw plugin_error(fmt::format("{}: work is not done after its wait", what));
  }

  // The first wrong element, or a changed send buffer; empty if there is none. Copies the received bytes to `bytes`.
  std::string examine(const Case& c, const Prepared& made, std::vector<uint8_t>& bytes) const {
    const Expected expected = received(c, rank_, size_, (subject_.table->properties & CHASSIS_COMM_ROUNDS_HALVES) != 0);
    const Values got = values_of(made.recv);
    for (size_t i = 0; i < expected.values.size(); ++i)
      if (!(std::abs(got[i] - expected.values[i]) <= expected.bounds[i]))
        return fmt::format("{}: element {} on rank {} is {}, expected {}", c.text(size_), i, rank_, got[i],
                           expected.values[i]);
    if (!c.in_place)
      if (const Values now = values_of(made.send); now != made.sends)
        return fmt::format("{}: the send buffer of rank {} was changed", c.text(size_), rank_);
    const auto* begin = made.recv.data_as<uint8_t>();
    bytes.assign(begin, begin + made.recv.num_bytes());
    return "";
  }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  const CommSubject& subject_;
  MemoryStore& shared_;
  StoreTable store_;
  const std::string name_;
  const int rank_, size_;
  chassis_backend_group_t* group_ = nullptr;
};

// Failures of all ranks, and each rank's result of each case, for the comparison between ranks.
struct Shared {
  MemoryStore store;
  std::mutex mutex;
  std::vector<std::string> failures;
  std::vector<std::vector<std::vector<uint8_t>>> results;  // [rank][case]

  void fail(std::string text) {
    const std::lock_guard lock(mutex);
    if (std::find(failures.begin(), failures.end(), text) == failures.end()) failures.push_back(std::move(text));
  }
};

enum class StartMode { kAlone, kAsOne, kInFlight };

void run_cases(GroupRank& group_rank, const std::vector<Case>& cases, StartMode mode, Shared& shared, bool keep) {
  std::vector<Prepared> made;
  for (const Case& c : cases) made.push_back(prepare(c, group_rank.rank(), group_rank.size()));
  if (mode == StartMode::kAsOne) {
    std::vector<chassis_collective_t> all;
    for (const Prepared& p : made) all.insert(all.end(), p.calls.begin(), p.calls.end());
    group_rank.finish(group_rank.start(all), "all collectives as one start");
  } else if (mode == StartMode::kAlone) {
    for (size_t i = 0; i < cases.size(); ++i)
      group_rank.finish(group_rank.start(made[i].calls), cases[i].text(group_rank.size()));
  } else {
    std::vector<chassis_backend_work_t*> works;
    for (const Prepared& p : made) works.push_back(group_rank.start(p.calls));
    for (size_t i = cases.size(); i-- > 0;)
      group_rank.finish(works[i], cases[i].text(group_rank.size()) + ", others in flight");
  }
  auto& mine = shared.results[static_cast<size_t>(group_rank.rank())];
  if (keep) mine.assign(cases.size(), {});
  std::vector<uint8_t> unused;
  for (size_t i = 0; i < cases.size(); ++i)
    if (std::string text = group_rank.examine(cases[i], made[i], keep ? mine[i] : unused); !text.empty()) {
      constexpr std::array<const char*, 3> kModeTexts = {"", ", all as one start", ", all in flight at once"};
      shared.fail(text + kModeTexts[static_cast<size_t>(mode)]);
      return;
    }
}

void run_rank(const CommSubject& subject, int rank, int size, Shared& shared) {
  GroupRank all(subject, shared.store, "all", rank, size);
  const std::vector<Case> cases = all_cases(size);
  run_cases(all, cases, StartMode::kAlone, shared, true);
  run_cases(all, cases, StartMode::kAsOne, shared, false);
  run_cases(all, cases, StartMode::kInFlight, shared, false);
  if (size < 4) return;
  // Groups of two ranks each, while the group of all ranks exists.
  Shared halves;
  halves.results.resize(2);
  GroupRank half(subject, shared.store, rank < 2 ? "low" : "high", rank % 2, 2);
  run_cases(half, all_cases(2), StartMode::kInFlight, halves, false);
  for (std::string& text : halves.failures) shared.fail(std::move(text));
  run_cases(all, {{}}, StartMode::kAlone, shared, false);
}

void compare_ranks(const Shared& shared, int size, std::vector<std::string>& failures) {
  const std::vector<Case> cases = all_cases(size);
  for (size_t i = 0; i < cases.size(); ++i)
    for (int rank = 1; cases[i].op == CHASSIS_COMM_ALL_REDUCE && rank < size; ++rank)
      if (shared.results[static_cast<size_t>(rank)][i] != shared.results[0][i])
        return failures.push_back(fmt::format("{}: ranks 0 and {} have different bits", cases[i].text(size), rank));
}

std::vector<std::string> failures_without_moving(const CommSubject& subject) {
  std::vector<std::string> failures;
  Shared shared;
  constexpr int kSize = 4;
  for (int rank = 0; rank < kSize; ++rank) {
    GroupRank group_rank(subject, shared.store, "all", rank, kSize);
    for (const Case& c : all_cases(kSize)) {
      Prepared made = prepare(c, rank, kSize);
      for (chassis_collective_t& call : made.calls) call.send = call.recv = nullptr;
      group_rank.finish(group_rank.start(made.calls), c.text(kSize));
    }
  }
  return failures;
}

}  // namespace

std::string comm_unsupported_reason(const CommSubject& backend) {
  chassis_status_t* status = backend.table->supports(backend.self, CHASSIS_DEVICE_CPU, 0);
  if (status == nullptr) return "";
  if (status_code(status) != CHASSIS_UNIMPLEMENTED) throw_if_failed(status, backend.label + ": supports");
  std::string text = "it does not support CPU memory: " + status_text(status);
  status_release(status);
  return text;
}

std::vector<std::string> comm_failures(std::span<const CommSubject> ranks) {
  const auto size = static_cast<int>(ranks.size());
  CHASSIS_CHECK(size >= 2, "collectives of one rank");
  constexpr uint32_t kProperties = CHASSIS_COMM_MOVES_NOTHING | CHASSIS_COMM_ROUNDS_HALVES;
  if (const uint32_t unknown = ranks[0].table->properties & ~kProperties; unknown != 0)
    return {fmt::format("its properties have the bits {:#x}, which mean nothing; the host knows {:#x}", unknown,
                        kProperties)};
  if (ranks[0].table->properties & CHASSIS_COMM_MOVES_NOTHING) return failures_without_moving(ranks[0]);
  Shared shared;
  shared.results.resize(ranks.size());
  std::vector<Thread> threads;
  threads.reserve(ranks.size());
  const auto start = [&](int rank) {
    threads.emplace_back("test", [&, rank] {
      const ThreadRoleScope role(ThreadRole::kStep);
      try {
        run_rank(ranks[static_cast<size_t>(rank)], rank, size, shared);
      } catch (const std::exception& error) {
        if (!shared.store.failed()) shared.fail(fmt::format("rank {}: {}", rank, error.what()));
        shared.store.fail();
      }
    });
  };
  try {
    for (int rank = 0; rank < size; ++rank) start(rank);
  } catch (...) {  // those that started wait for the others
    shared.store.fail();
    throw;
  }
  for (Thread& thread : threads) thread.join();
  if (shared.failures.empty()) compare_ranks(shared, size, shared.failures);
  return shared.failures;
}

}  // namespace chassis
