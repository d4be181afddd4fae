// How calls in flight are stored, compared and described.
#include "host/service/comm_flight.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "host/launch/rank_failure.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kCompareAfter = 1s;
constexpr const char* kHint =
    "all ranks of a group must make the same calls in the same order: look for what differs between them, such as "
    "data, files or versions";

constexpr const char* kHangKey = "comm/hang";

std::string pack_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> texts;
  for (const int rank : ranks) texts.push_back(std::to_string(rank));
  return pack(texts);
}
std::vector<int> unpack_ranks(const std::string& packed) {
  std::vector<int> ranks;
  for (const std::string& text : unpack(packed)) ranks.push_back(std::stoi(text));
  return ranks;
}

std::string key_of(int rank) { return fmt::format("comm/waits/{}", rank); }

bool is_send_or_receive(const std::string& call) { return call.starts_with("send ") || call.starts_with("recv "); }

// A flight as read from the store.
struct StoredFlight {
  std::string group_key;
  uint64_t sequence = 0, hash = 0;
  std::map<int, CommBatch::PeerHashes> peer_hashes;
  std::vector<std::string> calls;
};

std::string pack_flight(const Flight& flight) {
  std::vector<std::string> parts = {flight.group_key, std::to_string(flight.sequence),
                                    std::to_string(flight.batch.hash())};
  const auto peer_hashes = flight.batch.peer_hashes();
  parts.push_back(std::to_string(peer_hashes.size()));
  for (const auto& [peer, hashes] : peer_hashes) {
    for (uint64_t number : {static_cast<uint64_t>(peer), hashes.sent, hashes.received})
      parts.push_back(std::to_string(number));
  }
  for (std::string& call : flight.batch.call_texts()) parts.push_back(std::move(call));
  return pack(parts);
}

// A rank's report about itself while it waits.
struct WaitReport {
  std::string call;        // the call that it waits for
  std::vector<int> ranks;  // the ranks of the call's group
  std::vector<StoredFlight> flights;
};

StoredFlight unpack_flight(const std::string& text) {
  const std::vector<std::string> parts = unpack(text);
  StoredFlight out{parts.at(0), std::stoull(parts.at(1)), std::stoull(parts.at(2)), {}, {}};
  size_t at = 4;
  for (size_t left = std::stoul(parts.at(3)); left > 0; --left, at += 3)
    out.peer_hashes[std::stoi(parts.at(at))] = {std::stoull(parts.at(at + 1)), std::stoull(parts.at(at + 2))};
  out.calls.assign(parts.begin() + static_cast<ptrdiff_t>(at), parts.end());
  return out;
}

std::optional<WaitReport> find_report(Store& store, int rank) {
  const std::optional<std::string> text = store.find(key_of(rank));
  if (!text) return std::nullopt;
  const std::vector<std::string> parts = unpack(*text);
  WaitReport report{parts.at(0), unpack_ranks(parts.at(1)), {}};
  for (size_t i = 2; i < parts.size(); ++i) report.flights.push_back(unpack_flight(parts[i]));
  return report;
}

// The first collective in which two ranks differ: the text of each, with its position in a longer batch.
std::pair<std::string, std::string> first_difference(std::vector<std::string> a, std::vector<std::string> b) {
  std::erase_if(a, is_send_or_receive);
  std::erase_if(b, is_send_or_receive);
  size_t k = 0;
  while (k < a.size() && k < b.size() && a[k] == b[k]) ++k;
  const auto text = [&](const std::vector<std::string>& calls) {
    if (k >= calls.size()) return std::string(k == 0 ? "no call" : "no further call");
    return calls.size() == 1 ? calls[k] : fmt::format("{} ({} of {})", calls[k], k + 1, calls.size());
  };
  return {text(a), text(b)};
}

std::string joined(const std::vector<std::string>& calls) {
  return calls.empty() ? "no call" : fmt::format("{}", fmt::join(calls, ", "));
}

// "rank 0", "ranks 0, 2 and 3".
std::string rank_list(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

}  // namespace

std::string Flight::place() const { return fmt::format("#{} of {}", sequence, group); }
std::string Flight::text() const { return fmt::format("{} ({})", batch.text(), place()); }

const Flight& Flights::start(Flight flight) {
  const std::lock_guard lock(mutex_);
  changed_ = true;
  return flights_.emplace_back(std::move(flight));
}

void Flights::end(const Flight& flight) noexcept {
  bool is_reported = false;
  {
    const std::lock_guard lock(mutex_);
    changed_ = true;
    is_reported = reported_waiting_ == &flight;
    if (is_reported) reported_waiting_ = nullptr;
    flights_.remove_if([&](const Flight& known) { return &known == &flight; });
  }
  if (!is_reported) return;
  try {
    world_.store()->erase(key_of(world_.rank()));
  } catch (const Error&) {  // the store is lost, as its next user will report
  }
}

void Flights::report_waiting(const Flight& waiting) {
  std::vector<std::string> parts;
  {
    const std::lock_guard lock(mutex_);
    if (!changed_ && reported_waiting_ == &waiting) return;
    changed_ = false;
    reported_waiting_ = &waiting;
    parts = {waiting.text(), pack_ranks(*waiting.ranks)};
    for (const Flight& flight : flights_) parts.push_back(pack_flight(flight));
  }
  world_.store()->set(key_of(world_.rank()), pack(parts));
}

void Flights::check(const Flight& flight, std::chrono::nanoseconds waited) {
  const std::chrono::nanoseconds deadline = world_.deadline();
  try {
    world_.throw_if_another_failed();
  } catch (const Error&) {
    note_call(flight);
    throw;
  }
  if (waited < std::min<std::chrono::nanoseconds>(kCompareAfter, deadline / 2)) return;
  try {
    report_waiting(flight);
    // If calls differ anywhere, they differ between two neighbours.
    const int size = static_cast<int>(flight.ranks->size());
    std::set<int> others = {(flight.rank + 1) % size, (flight.rank + size - 1) % size};
    for (const auto& [peer, hashes] : flight.batch.peer_hashes()) others.insert(peer);
    for (int other : others) compare(flight, other);
    if (waited >= deadline) throw deadline_error(flight, waited);
  } catch (const Error& error) {
    note_call(flight);
    world_.report_failure(error);  // before this rank's connections close
    throw;
  }
}

void Flights::note_call(const Flight& flight) {
  const std::lock_guard lock(mutex_);
  hang_.call = flight.text();
}

Hang Flights::hang() {
  Hang out;
  {
    const std::lock_guard lock(mutex_);
    out = hang_;
  }
  if (!out.silent.empty() || !out.waiting.empty() || !world_.store()) return out;
  try {
    const std::optional<std::string> found = world_.store()->find(kHangKey);
    if (!found) return out;
    const std::vector<std::string> parts = unpack(*found, 2);
    out.silent = unpack_ranks(parts[0]);
    const std::vector<std::string> calls = unpack(parts[1]);
    for (size_t i = 0; i + 1 < calls.size(); i += 2)
      if (calls[i] != out.call) out.waiting[calls[i]] = unpack_ranks(calls[i + 1]);
  } catch (const std::exception&) {  // the store is lost, or holds something else
  }
  return out;
}

void Flights::compare(const Flight& mine, int other) {
  const int ranks[] = {(*mine.ranks)[static_cast<size_t>(mine.rank)], (*mine.ranks)[static_cast<size_t>(other)]};
  const std::optional<WaitReport> report = find_report(*world_.store(), ranks[1]);
  if (!report) return;
  const auto mismatch = [&](const std::string& what, std::string own, std::string its) {
    const bool swap = ranks[1] < ranks[0];  // so that both ranks have the same text
    if (swap) std::swap(own, its);
    return Error(ExitCode::kCommunication,
                 fmt::format("{}: rank {}: {}; rank {}: {}", what, ranks[swap], own, ranks[!swap], its))
        .hint(kHint);
  };
  const std::lock_guard lock(mutex_);
  for (const StoredFlight& its : report->flights) {
    for (const Flight& own : flights_) {
      if (own.group_key != its.group_key || own.sequence != its.sequence) continue;
      if (own.batch.hash() != its.hash) {
        const auto [a, b] = first_difference(own.batch.call_texts(), its.calls);
        throw mismatch(fmt::format("two ranks make different calls in {}", own.place()), a, b);
      }
      auto peer_hashes = own.batch.peer_hashes();
      const CommBatch::PeerHashes here = peer_hashes[other];
      const auto there = its.peer_hashes.find(own.rank);
      if (there == its.peer_hashes.end() ? here != CommBatch::PeerHashes{}
                                         : here.sent != there->second.received || here.received != there->second.sent)
        throw mismatch(fmt::format("what two ranks send each other does not match in {}", own.place()),
                       joined(own.batch.call_texts()), joined(its.calls));
    }
  }
}

// Records the hang for this rank, and in the store for the ranks that end with this rank's error.
void Flights::leave_hang(const std::vector<int>& silent, const std::map<std::string, std::vector<int>>& waiting,
                         const Flight& flight) {
  std::vector<std::string> calls;
  for (const auto& [call, ranks] : waiting) calls.insert(calls.end(), {call, pack_ranks(ranks)});
  world_.store()->set_once(kHangKey, pack({pack_ranks(silent), pack(calls)}));
  const std::lock_guard lock(mutex_);
  hang_.silent = silent;
  hang_.waiting = waiting;
  hang_.waiting.erase(flight.text());
}

Error Flights::deadline_error(const Flight& flight, std::chrono::nanoseconds waited) {
  report_waiting(flight);
  // A rank of this group may wait for one outside it, so the ranks of the groups that are waited for are asked as well.
  std::map<int, std::optional<WaitReport>> reports;  // by rank
  for (int rank : *flight.ranks) reports[rank];
  // A rank that has only just started to wait needs kCompareAfter to report.
  for (const auto end = Clock::now() + kCompareAfter + 200ms;;) {
    for (auto& [rank, report] : reports) {
      if (report) continue;
      report = find_report(*world_.store(), rank);
      if (report)
        for (int other : report->ranks) reports[other];
    }
    const bool is_complete = std::all_of(reports.begin(), reports.end(), [](const auto& r) { return r.second; });
    if (is_complete || Clock::now() >= end) break;
    std::this_thread::sleep_for(20ms);
  }
  std::vector<int> silent;
  std::map<std::string, std::vector<int>> waiting;
  const auto is_of_group = [&](int rank) {
    return std::find(flight.ranks->begin(), flight.ranks->end(), rank) != flight.ranks->end();
  };
  for (const auto& [rank, report] : reports) {
    if (!report)
      silent.push_back(rank);
    else if (is_of_group(rank))
      waiting[report->call].push_back(rank);
  }
  leave_hang(silent, waiting, flight);
  std::string reason;
  const auto add = [&](const std::vector<int>& ranks, const std::string& what) {
    reason += fmt::format("{}{} {}", reason.empty() ? "" : "; ", rank_list(ranks), what);
  };
  // A rank that is busy inside a plugin has reported that call itself.
  std::vector<int> unknown;
  for (const int rank : silent) {
    const std::string call = world_.call_of(rank);
    if (call.empty())
      unknown.push_back(rank);
    else
      add({rank}, "has been inside " + call);
  }
  const bool is_in_plugin = unknown.size() < silent.size();
  if (!unknown.empty()) add(unknown, "did not respond");
  for (const auto& [text, ranks] : waiting) {
    if (text != flight.text()) add(ranks, fmt::format("{} in {}", ranks.size() == 1 ? "waits" : "wait", text));
  }
  if (reason.empty()) reason = "all its ranks wait for it";
  const double seconds = std::chrono::duration<double>(waited).count();
  Error error(ExitCode::kCommunication,
              is_in_plugin ? fmt::format("{}; {} was not done within {:.0f} s", reason, flight.text(), seconds)
                           : fmt::format("{} was not done within {:.0f} s: {}", flight.text(), seconds, reason));
  error.hint(is_in_plugin
                 ? "that call does not return, or takes longer than the others wait, which [comm] timeout_s says"
             : !silent.empty() ? "a rank that did not respond has stopped or is busy elsewhere; [comm] timeout_s says "
                                 "how long the others wait"
             : waiting.size() > 1 ? kHint
                                  : "check the network between the machines");
  return error;
}

}  // namespace chassis
