// Ranks meet, exchange texts and fail together by keys of the store. Rank 0 collects what the others set.
#include "host/launch/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "host/base/control_groups.hpp"
#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/launch/address.hpp"
#include "host/launch/arrival.hpp"
#include "host/launch/rank_failure.hpp"
#include "host/launch/text_difference.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kMaxRank = 1 << 24;
constexpr auto kWatchInterval = 100ms;
constexpr auto kFirstNotice = 2s, kNextNotice = 5s;  // when missing ranks are logged
constexpr auto kCauseTimeout = 1s;                   // until the cause of a broken connection is reported
constexpr auto kLeaveTimeout = 30s, kLeaveTimeoutAfterFailure = 5s;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// "4, 6, 7", shortened if there are many.
std::string list_text(const std::vector<int>& ranks) {
  constexpr size_t kMaxShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxShown); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > kMaxShown ? text + fmt::format(" and {} more", ranks.size() - kMaxShown) : text;
}

std::string remote_text(int rank, const std::string& text) { return fmt::format("rank {}: {}", rank, text); }

// True if another rank failed with an equal error: all ranks made the same mistake at the same time.
bool is_equal(const Error& error, const RankFailure& failure) {
  return error.code() == failure.code && remote_text(failure.rank, error.what()) == failure.text;
}

bool is_loopback(const std::string& address) { return resolve(address, 0).front().is_loopback(); }

}  // namespace

// The texts that all ranks set under key + rank.
struct World::Gathering {
  Gathering(std::string key, int num_ranks) : key(std::move(key)), texts(static_cast<size_t>(num_ranks)) {
    for (int rank = 0; rank < num_ranks; ++rank) missing.push_back(rank);
  }
  std::string key;
  std::vector<std::string> texts;
  std::vector<int> missing;
};

World::World() : num_cores_(usable_threads()) {}

World::World(Launch launch, std::chrono::milliseconds timeout) : World() {
  launch_ = std::move(launch);
  if (launch_.alone()) return;
  if (rank() == 0 && !launch_.store_is_elsewhere) {
    const bool one_machine = launch_.local_world_size == size() && is_loopback(launch_.master_address);
    server_address_ = one_machine ? launch_.master_address : "";
    serve_store();
  }
  store_ = connect_store(launch_.master_address, launch_.master_port, timeout, launch_.store_prefix);
  register_rank();
  try {
    run([&] { return hold_lifeline(timeout), meet(timeout), 0; });
  } catch (...) {
    leave();
    throw;
  }
}

World::~World() { leave(); }

// The port may be in use by a process that was to be another rank and serves the reason why it failed: see
// tell_waiting_ranks().
void World::serve_store() {
  try {
    server_ = std::make_unique<StoreServer>(server_address_, launch_.master_port);
  } catch (const Error&) {
    std::optional<RankFailure> failure;
    try {
      failure = find_failure(*connect_store(launch_.master_address, launch_.master_port, 500ms, launch_.store_prefix));
    } catch (const Error&) {  // no store of ours
    }
    if (failure && failure->rank == kNoRank) throw RemoteError(failure->code, failure->text);
    throw;
  }
}

void World::set_deadline(std::chrono::milliseconds deadline) {
  deadline_ = deadline;
  if (store_) store_->set_timeout(deadline);
}

void World::leave() noexcept {
  // Counted once: if a constructor that delegates throws, the destructor still runs.
  if (!store_ || std::exchange(has_left_, true)) return;
  if (lifeline_) lifeline_->leave();
  try {
    const auto timeout = failed_ || std::uncaught_exceptions() > 0 ? kLeaveTimeoutAfterFailure : kLeaveTimeout;
    const auto end = Clock::now() + timeout;
    store_->set_timeout(timeout);
    int64_t num_left = store_->add("left", 1);
    while (server_ && num_left + (lifelines_ ? lifelines_->num_gone() : 0) < size() && Clock::now() < end) {
      std::this_thread::sleep_for(10ms);
      num_left = store_->add("left", 0);
    }
  } catch (const std::exception&) {  // the store has already ended
  }
}

// Refuses a process that cannot be a rank of the store's run. Does not disturb that run if it has begun.
void World::register_rank() {
  if (!store_->set_once("world_size", pack({std::to_string(rank()), std::to_string(size()), process_text()}))) {
    const std::vector<std::string> first = unpack(store_->find("world_size").value_or(""), 3);
    std::pair low(number_from_store(first[0], 0, kMaxRank, "a rank"),
                  number_from_store(first[1], 1, kMaxRank, "a number of ranks"));
    if (low.second != size()) {
      std::pair high(rank(), size());
      if (high < low) std::swap(low, high);
      Error error = config_error(fmt::format("rank {} was started as one of {} ranks, rank {} as one of {}", high.first,
                                             high.second, low.first, low.second))
                        .with("rank " + first[0], first[2])
                        .with("rank " + std::to_string(rank()), process_text())
                        .hint("WORLD_SIZE, or the number of ranks given to the launcher, must be the same for all");
      if (!store_->find("arrived/all")) {
        report_failure(error);
        leave();
      }
      throw error;
    }
  }
  const std::string process = fmt::format("process/{}", rank());
  if (store_->add(fmt::format("starts/{}", rank()), 1) == 1) return store_->set(process, process_text());
  const std::string other = printable(store_->find(process).value_or("another"));
  throw Error(ExitCode::kCommunication,
              fmt::format("two processes are rank {} at the store at {}:{}: {}, and {}", rank(), launch_.master_address,
                          launch_.master_port, other, process_text()))
      .hint("another run uses this port, or two processes were started as the same rank");
}

// A launcher that serves the store watches the processes itself.
void World::hold_lifeline(std::chrono::milliseconds timeout) {
  if (launch_.store_is_elsewhere) return;
  const std::string key = "lifelines/port";
  if (server_) {
    const auto report = [this](int gone) {
      const std::string process = printable(store_->find(fmt::format("process/{}", gone)).value_or("its process"));
      post_failure(*store_,
                   {gone, ExitCode::kCommunication, fmt::format("rank {} went away: {} has ended", gone, process)});
    };
    lifelines_ = std::make_unique<LifelineServer>(server_address_, size(), report);
    store_->set(key, std::to_string(lifelines_->port()));
  }
  std::optional<std::string> port;
  wait_until(
      Clock::now() + timeout, [&] { return (port = store_->find(key)).has_value(); },
      [] { return "rank 0 did not start the run"; });
  try {
    lifeline_.emplace(launch_.master_address, number_from_store(*port, 1, 65535, "a port"), rank());
  } catch (const Error& error) {
    counted_warning("no connection by which rank 0 notices at once if this rank dies",
                    "rank 0 will not notice at once if this rank dies: " + error.message());
  }
}

void World::meet(std::chrono::milliseconds timeout) {
  const char* const chosen = std::getenv("CHASSIS_HOST_ADDRESS");
  if (chosen) require_address(chosen);
  host_address_ = chosen ? chosen : local_address_towards(launch_.master_address);
  if (host_address_.empty()) host_address_ = "127.0.0.1";
  const Arrival mine = this_arrival(launch_, chosen ? chosen : "", host_address_);
  const std::vector<std::string> texts = await_arrivals(to_text(mine), timeout);

  std::vector<Arrival> ranks;
  for (size_t other = 0; other < texts.size(); ++other)
    ranks.push_back(arrival_from_text(texts[other], static_cast<int>(other)));
  const auto on_this_machine = [&](const Arrival& other) { return other.machine == mine.machine; };
  const auto shares_cores = [&](const Arrival& other) {
    return on_this_machine(other) && std::find_first_of(mine.cores.begin(), mine.cores.end(), other.cores.begin(),
                                                        other.cores.end()) != mine.cores.end();
  };
  const auto num_sharing = std::count_if(ranks.begin(), ranks.end(), shares_cores);
  num_cores_ = std::max(1, usable_threads() / std::max(1, static_cast<int>(num_sharing)));

  // The master may have found only its loopback address, which other machines cannot use.
  if (chosen || !is_loopback(host_address_)) return;
  for (const Arrival& other : ranks) {
    if (on_this_machine(other) || is_loopback(other.address)) continue;
    if (const std::string here = local_address_towards(other.address); !here.empty()) host_address_ = here;
    return;
  }
}

std::vector<std::string> World::await_arrivals(const std::string& mine, std::chrono::milliseconds timeout) {
  const auto start = Clock::now();
  store_->set(fmt::format("arrived/{}", rank()), mine);
  if (rank() != 0) {
    std::optional<std::string> all;
    // Waits a little longer than rank 0, which knows the missing ranks.
    wait_until(
        start + timeout + 5s, [&] { return (all = store_->find("arrived/all")).has_value(); },
        [&] { return fmt::format("rank 0 did not start the run within {:.3g} s", seconds(Clock::now() - start)); });
    return unpack(*all, static_cast<size_t>(size()));
  }
  Gathering arrivals("arrived/", size());
  auto next_notice = start + kFirstNotice;
  const auto all_arrived = [&] {
    if (gather(arrivals)) return true;
    if (Clock::now() >= next_notice) {
      log::info("waiting for {} of {} ranks: {}", arrivals.missing.size(), size(), list_text(arrivals.missing));
      next_notice = Clock::now() + kNextNotice;
    }
    return false;
  };
  wait_until(start + timeout, all_arrived, [&] {
    return fmt::format("{} of {} ranks did not arrive within {:.3g} s: {}; [comm] init_timeout_s sets the limit",
                       arrivals.missing.size(), size(), seconds(timeout), list_text(arrivals.missing));
  });
  require_local_ranks(arrivals.texts);
  store_->set("arrived/all", pack(arrivals.texts));
  return arrivals.texts;
}

// "; rank 1 has been inside plugin 'x' 1.0.0 in step, step 3 for 60 s", for those ranks that have reported a call.
std::string World::calls_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int other : ranks)
    if (const std::string call = call_of(other); !call.empty())
      text += fmt::format("; rank {} has been inside {}", other, call);
  return text;
}

// Reads the texts that have arrived since the last call. Returns whether all are there.
bool World::gather(Gathering& gathering) {
  std::erase_if(gathering.missing, [&](int other) {
    auto text = store_->find(gathering.key + std::to_string(other));
    if (text) gathering.texts[static_cast<size_t>(other)] = std::move(*text);
    return text.has_value();
  });
  return gathering.missing.empty();
}

std::vector<std::string> World::exchange(const std::string& what, const std::string& mine) {
  if (size() == 1) return {mine};
  const auto key = [](uint64_t round) { return fmt::format("exchange/{}/", round); };
  const std::string here = key(num_exchanges_);
  store_->set(here + std::to_string(rank()), pack({what, mine}));
  Gathering gathering(here, size());
  const auto late = [&] {
    gather(gathering);
    const std::vector<int>& missing = gathering.missing;
    return fmt::format("{}: waited {:.3g} s for {}{}", what, seconds(deadline_),
                       missing.empty() ? "rank 0" : (missing.size() == 1 ? "rank " : "ranks ") + list_text(missing),
                       calls_text(missing.empty() ? std::vector<int>{0} : missing));
  };
  if (rank() != 0) {
    std::optional<std::string> all;
    wait_for([&] { return (all = store_->find(here + "all")).has_value(); }, late);
    ++num_exchanges_;
    return unpack(*all, static_cast<size_t>(size()));
  }
  wait_for([&] { return gather(gathering); }, late);
  for (int other = 0; other < size(); ++other) {
    std::string& text = gathering.texts[static_cast<size_t>(other)];
    const std::vector<std::string> parts = unpack(text, 2);
    if (parts[0] != what)
      throw internal_error(
          fmt::format("the ranks are not at the same place: rank {} at '{}', rank 0 at '{}'", other, parts[0], what));
    text = parts[1];
  }
  store_->set(here + "all", pack(gathering.texts));
  // Erases all but this round's answer: every rank that takes part in this round has read the previous one.
  for (int other = 0; other < size(); ++other) store_->erase(here + std::to_string(other));
  if (num_exchanges_ > 0) store_->erase(key(num_exchanges_ - 1) + "all");
  ++num_exchanges_;
  return gathering.texts;
}

void World::expect_same(const std::string& what, const std::string& mine) {
  const std::vector<std::string> hashes = exchange(what, sha256_hex(mine));
  if (std::all_of(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash == hashes[0]; })) return;
  const std::vector<std::string> texts = exchange(what, mine);
  for (int other = 1; other < size(); ++other) {
    if (texts[static_cast<size_t>(other)] == texts[0]) continue;
    const std::string message = fmt::format("the ranks differ in {}: {}", what,
                                            text_difference(texts[static_cast<size_t>(other)], other, texts[0], 0));
    if (other == rank())
      throw config_error(message).hint("give all ranks the same command line, and the same files on every machine");
    throw RemoteError(ExitCode::kConfig, remote_text(other, message));
  }
}

void World::run_and_agree(const std::string& what, const std::function<void()>& part) {
  std::exception_ptr own;
  std::string reported;
  try {
    part();
  } catch (const RemoteError&) {
    throw;
  } catch (...) {
    own = std::current_exception();
    const Error error = current_error();
    reported = pack({std::to_string(static_cast<int>(error.code())), error.what()});
  }
  const std::vector<std::string> all = exchange(what, reported);
  if (own) std::rethrow_exception(own);
  for (int other = 0; other < size(); ++other) {
    if (all[static_cast<size_t>(other)].empty()) continue;
    const std::vector<std::string> error = unpack(all[static_cast<size_t>(other)], 2);
    throw RemoteError(exit_code_from_store(error[0]), remote_text(other, error[1]));
  }
}

int World::run(const std::function<int()>& body) {
  try {
    return body();
  } catch (const RemoteError&) {
    throw;
  } catch (const Error& e) {
    if (store_ && e.code() == ExitCode::kCommunication) await_cause();
    report_failure(e);
    if (const auto first = reported_by_another(e)) throw RemoteError(first->code, first->text);
    throw;
  } catch (...) {
    report_failure(current_error());
    throw;
  }
}

void World::await_cause() {
  for (const auto end = Clock::now() + kCauseTimeout; Clock::now() < end; std::this_thread::sleep_for(10ms)) {
    std::optional<RankFailure> first;
    try {
      first = find_failure(*store_);
    } catch (const StoreLost& lost) {  // this is the cause
      throw with_server(lost);
    }
    if (first && first->rank != rank()) throw RemoteError(first->code, first->text);
    if (first) return;
  }
}

// Adds the process that served the store to the error.
StoreLost World::with_server(const StoreLost& lost) const {
  const bool by_launcher = launch_.store_is_elsewhere;
  StoreLost error(fmt::format("{} {}: {}", by_launcher ? "the launcher" : "rank 0", lost.hangs() ? "hangs" : "is gone",
                              lost.message()),
                  lost.hangs());
  if (lost.hangs())
    error.hint("it has stopped, or its machine cannot be reached; [comm] timeout_s sets how long the others wait");
  else
    error.hint("see its last output, and dmesg on its machine: the system kills a process when memory runs out");
  return error;
}

bool World::is_failure_of_another(const Error& error) noexcept {
  return error.is_from_another_rank() || reported_by_another(error);
}

std::optional<RankFailure> World::reported_by_another(const Error& error) noexcept {
  const std::optional<RankFailure> first = first_failure();
  if (!first || first->rank == rank()) return std::nullopt;
  if (!error.is_from_another_rank() && !is_equal(error, *first)) return std::nullopt;
  return first;
}

std::optional<RankFailure> World::first_failure() noexcept {
  try {
    return store_ ? find_failure(*store_) : std::nullopt;
  } catch (const std::exception&) {  // the store is lost
    return std::nullopt;
  }
}

void World::report_failure(const Error& error) noexcept {
  if (!store_ || error.is_from_another_rank()) return;
  failed_ = true;
  try {
    post_failure(*store_, {rank(), error.code(), remote_text(rank(), error.what())});
  } catch (const std::exception&) {  // the store is lost, and the other ranks notice it too
  }
}

void World::throw_if_another_failed() {
  if (!store_) return;
  std::optional<RankFailure> failure;
  try {
    failure = find_failure(*store_);
  } catch (const StoreLost& lost) {
    throw with_server(lost);
  }
  if (!failure || failure->rank == rank()) return;
  failed_ = true;
  throw RemoteError(failure->code, failure->text);
}

void World::say_call(const std::string& call) {
  if (!store_) return;
  const std::string key = fmt::format("inside/{}", rank());
  try {
    if (call.empty())
      store_->erase(key);
    else
      store_->set(key, call);
  } catch (const StoreLost& lost) {
    throw with_server(lost);
  }
}

std::string World::call_of(int rank) {
  if (!store_) return "";
  try {
    return printable(store_->find(fmt::format("inside/{}", rank)).value_or(""));
  } catch (const Error&) {  // only a part of the message is missing
    return "";
  }
}

void World::wait_for(const std::function<bool()>& ready, const std::function<std::string()>& late) {
  wait_until(Clock::now() + deadline_, ready, late);
}

void World::wait_until(Clock::time_point end, const std::function<bool()>& ready,
                       const std::function<std::string()>& late) {
  auto next_look = Clock::now() + kWatchInterval;
  auto pause = 50us;
  while (!ready()) {
    const auto now = Clock::now();
    if (now >= next_look || now >= end) {
      throw_if_another_failed();
      next_look = now + kWatchInterval;
    }
    if (now >= end) throw Error(ExitCode::kCommunication, late());
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, std::chrono::microseconds(5000));
  }
}

}  // namespace chassis
