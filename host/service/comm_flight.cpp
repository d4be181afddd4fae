#include "host/service/comm_flight.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "host/launch/failure.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kPatience = 1s;
constexpr const char* kHint =
    "all ranks of a group make the same calls in the same order: look for what differs between them, such as data, "
    "files or versions";

std::string key_of(int rank) { return fmt::format("comm/waits/{}", rank); }

bool is_between_two(const std::string& line) { return line.starts_with("send ") || line.starts_with("recv "); }

// A flight as it stands in the store.
struct Told {
  std::string group_key;
  uint64_t sequence = 0, hash = 0;
  std::map<int, CommBatch::Between> between;
  std::vector<std::string> lines;
};

std::string told_text(const Flight& flight) {
  std::vector<std::string> parts = {flight.group_key, std::to_string(flight.sequence),
                                    std::to_string(flight.batch.hash())};
  const auto between = flight.batch.between();
  parts.push_back(std::to_string(between.size()));
  for (const auto& [peer, hashes] : between) {
    for (uint64_t number : {static_cast<uint64_t>(peer), hashes.sent, hashes.received})
      parts.push_back(std::to_string(number));
  }
  for (std::string& line : flight.batch.lines()) parts.push_back(std::move(line));
  return pack(parts);
}

Told read_told(const std::string& text) {
  const std::vector<std::string> parts = unpack(text);
  Told out{parts.at(0), std::stoull(parts.at(1)), std::stoull(parts.at(2)), {}, {}};
  size_t at = 4;
  for (size_t left = std::stoul(parts.at(3)); left > 0; --left, at += 3)
    out.between[std::stoi(parts.at(at))] = {std::stoull(parts.at(at + 1)), std::stoull(parts.at(at + 2))};
  out.lines.assign(parts.begin() + static_cast<ptrdiff_t>(at), parts.end());
  return out;
}

// The first collective in which two ranks differ: of each its words, and where it stands in a longer batch.
std::pair<std::string, std::string> first_difference(std::vector<std::string> a, std::vector<std::string> b) {
  std::erase_if(a, is_between_two);
  std::erase_if(b, is_between_two);
  size_t k = 0;
  while (k < a.size() && k < b.size() && a[k] == b[k]) ++k;
  const auto words = [&](const std::vector<std::string>& lines) {
    if (k >= lines.size()) return std::string(k == 0 ? "no call" : "no further call");
    return lines.size() == 1 ? lines[k] : fmt::format("{} ({} of {})", lines[k], k + 1, lines.size());
  };
  return {words(a), words(b)};
}

std::string joined(const std::vector<std::string>& lines) {
  return lines.empty() ? "no call" : fmt::format("{}", fmt::join(lines, ", "));
}

// "rank 0", "ranks 0, 2 and 3".
std::string rank_list(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

}  // namespace

std::string Flight::place() const { return fmt::format("#{} of {}", sequence, group); }
std::string Flight::text() const { return fmt::format("{} ({})", batch.words(), place()); }

const Flight& Flights::start(Flight flight) {
  const std::lock_guard lock(mutex_);
  changed_ = true;
  return flights_.emplace_back(std::move(flight));
}

void Flights::end(const Flight& flight) noexcept {
  bool told = false;
  {
    const std::lock_guard lock(mutex_);
    changed_ = true;
    told = told_waiting_ == &flight;
    if (told) told_waiting_ = nullptr;
    flights_.remove_if([&](const Flight& known) { return &known == &flight; });
  }
  if (!told) return;
  try {
    world_.store()->erase(key_of(world_.rank()));
  } catch (const Error&) {  // the store is lost; whoever asks it next throws that
  }
}

void Flights::tell(const Flight& waiting) {
  std::vector<std::string> parts = {waiting.text()};
  {
    const std::lock_guard lock(mutex_);
    if (!changed_ && told_waiting_ == &waiting) return;
    changed_ = false;
    told_waiting_ = &waiting;
    for (const Flight& flight : flights_) parts.push_back(told_text(flight));
  }
  world_.store()->set(key_of(world_.rank()), pack(parts));
}

void Flights::look(const Flight& flight, std::chrono::nanoseconds waited) {
  const std::chrono::nanoseconds deadline = world_.deadline();
  world_.throw_if_another_failed();
  if (waited < std::min<std::chrono::nanoseconds>(kPatience, deadline / 2)) return;
  try {
    tell(flight);
    // Where calls differ, they differ between neighbours.
    const int size = static_cast<int>(flight.ranks->size());
    std::set<int> others = {(flight.rank + 1) % size, (flight.rank + size - 1) % size};
    for (const auto& [peer, hashes] : flight.batch.between()) others.insert(peer);
    for (int other : others) compare(flight, other);
    if (waited >= deadline) throw late(flight, waited);
  } catch (const Error& error) {
    world_.report_failure(error);  // before this rank's connections close
    throw;
  }
}

void Flights::compare(const Flight& mine, int other) {
  const int ranks[] = {(*mine.ranks)[static_cast<size_t>(mine.rank)], (*mine.ranks)[static_cast<size_t>(other)]};
  const std::optional<std::string> text = world_.store()->find(key_of(ranks[1]));
  if (!text) return;
  std::vector<std::string> parts = unpack(*text);
  const auto differ = [&](const std::string& what, std::string own, std::string its) {
    const bool swap = ranks[1] < ranks[0];  // the same words on both ranks
    if (swap) std::swap(own, its);
    return Error(ExitCode::kCommunication,
                 fmt::format("{}: rank {}: {}; rank {}: {}", what, ranks[swap], own, ranks[!swap], its))
        .hint(kHint);
  };
  const std::lock_guard lock(mutex_);
  for (size_t i = 1; i < parts.size(); ++i) {
    const Told its = read_told(parts[i]);
    for (const Flight& own : flights_) {
      if (own.group_key != its.group_key || own.sequence != its.sequence) continue;
      if (own.batch.hash() != its.hash) {
        const auto [a, b] = first_difference(own.batch.lines(), its.lines);
        throw differ(fmt::format("two ranks make different calls in {}", own.place()), a, b);
      }
      auto between = own.batch.between();
      const CommBatch::Between here = between[other];
      const auto there = its.between.find(own.rank);
      if (there == its.between.end() ? here != CommBatch::Between{}
                                     : here.sent != there->second.received || here.received != there->second.sent)
        throw differ(fmt::format("what two ranks send each other does not match in {}", own.place()),
                     joined(own.batch.lines()), joined(its.lines));
    }
  }
}

Error Flights::late(const Flight& flight, std::chrono::nanoseconds waited) {
  tell(flight);
  std::vector<std::optional<std::string>> told(flight.ranks->size());
  // A little longer than the patience of one that has just come.
  for (const auto end = Clock::now() + kPatience + 200ms;;) {
    for (size_t i = 0; i < told.size(); ++i) {
      if (!told[i]) told[i] = world_.store()->find(key_of((*flight.ranks)[i]));
    }
    if (Clock::now() >= end || std::all_of(told.begin(), told.end(), [](const auto& t) { return t.has_value(); }))
      break;
    std::this_thread::sleep_for(20ms);
  }
  std::vector<int> silent;
  std::map<std::string, std::vector<int>> waiting;
  for (size_t i = 0; i < told.size(); ++i) {
    if (told[i])
      waiting[unpack(*told[i]).at(0)].push_back((*flight.ranks)[i]);
    else
      silent.push_back((*flight.ranks)[i]);
  }
  std::string who;
  const auto add = [&](const std::vector<int>& ranks, const std::string& what) {
    who += fmt::format("{}{} {}", who.empty() ? "" : "; ", rank_list(ranks), what);
  };
  if (!silent.empty()) add(silent, "gave no sign");
  for (const auto& [text, ranks] : waiting) {
    if (text != flight.text()) add(ranks, fmt::format("{} in {}", ranks.size() == 1 ? "waits" : "wait", text));
  }
  if (who.empty()) who = "all its ranks wait, and nothing moves";
  Error error(ExitCode::kCommunication, fmt::format("{} was not done within {:.0f} s: {}", flight.text(),
                                                    std::chrono::duration<double>(waited).count(), who));
  error.hint(
      !silent.empty()
          ? "a rank that gave no sign has stopped or is busy elsewhere; [comm] timeout_s says how long the others wait"
      : waiting.size() > 1 ? kHint
                           : "look at the network between the machines");
  return error;
}

}  // namespace chassis
