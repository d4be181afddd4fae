// Keeps spans in memory, and writes them as JSON.
#include "host/service/trace.hpp"

#include <fmt/format.h>

#include <time.h>
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "host/base/json.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxSpans = size_t{1} << 22;  // 288 MiB
constexpr const char* kTrackNames[] = {"steps", "data",      "micro-batches", "units",
                                       "nodes", "optimizer", "saves",         "collectives"};
constexpr int kRowsOfTrack = 1000;  // rows of a track have neighbouring numbers

// The rows in which the spans of one track are shown. Spans in the same row nest.
class Rows {
 public:
  // Call it with spans in ascending order of their begin, the longer first.
  size_t row_of(const TraceSpan& span) {
    for (size_t row = 0;; ++row) {
      if (row == open_.size()) open_.emplace_back();
      std::vector<int64_t>& ends = open_[row];
      while (!ends.empty() && ends.back() <= span.begin_ns) ends.pop_back();
      if (!ends.empty() && (ends.back() < span.end_ns || never_nests_)) continue;
      ends.push_back(span.end_ns);
      return row;
    }
  }
  explicit Rows(bool never_nests) : never_nests_(never_nests) {}

 private:
  bool never_nests_;
  std::vector<std::vector<int64_t>> open_;  // by row: the ends of the spans that are not over
};

}  // namespace

int64_t Trace::realtime_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Trace::Trace(int rank, int64_t origin_ns) : rank_(rank), offset_ns_(realtime_ns() - now_ns() - origin_ns) {
  intern("");
}

uint32_t Trace::intern(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
  names_.emplace_back(name);
  return numbers_[std::string(name)] = static_cast<uint32_t>(names_.size() - 1);
}

void Trace::add(const TraceSpan& span) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() < kMaxSpans)
    spans_.push_back(span);
  else
    ++num_dropped_;
}

bool Trace::empty() const {
  const std::lock_guard lock(mutex_);
  return spans_.empty();
}

uint64_t Trace::num_dropped() const {
  const std::lock_guard lock(mutex_);
  return num_dropped_;
}

std::string Trace::json() const {
  const std::lock_guard lock(mutex_);
  std::vector<TraceSpan> spans = spans_;
  std::sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
    return std::pair(a.begin_ns, -a.end_ns) < std::pair(b.begin_ns, -b.end_ns);
  });
  const auto quoted = [&](uint32_t name) { return json_line(Json(names_[name])); };
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  out += fmt::format(R"({{"ph":"M","name":"process_name","pid":{0},"tid":0,"args":{{"name":"rank {0}"}}}},
{{"ph":"M","name":"process_sort_index","pid":{0},"tid":0,"args":{{"sort_index":{0}}}}})",
                     rank_);
  std::map<std::pair<TraceTrack, uint32_t>, Rows> tracks;  // collectives have one for each group
  std::map<std::pair<TraceTrack, uint32_t>, int> first_row;
  std::set<int> named;
  int num_groups = 0;
  for (const TraceSpan& span : spans) {
    const bool is_collective = span.track == TraceTrack::kCollectives;
    const std::pair key(span.track, is_collective ? span.by : 0);
    auto [rows, is_new] = tracks.try_emplace(key, is_collective);
    if (is_new) first_row[key] = (static_cast<int>(span.track) + 1 + (is_collective ? num_groups++ : 0)) * kRowsOfTrack;
    const size_t row = rows->second.row_of(span);
    const int thread = first_row[key] + static_cast<int>(row);
    if (named.insert(thread).second) {
      std::string name = kTrackNames[static_cast<size_t>(span.track)];
      if (is_collective) name += " of " + names_[span.by];
      if (row > 0) name += fmt::format(" ({})", row + 1);
      out += fmt::format(R"(,
{{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}},
{{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})",
                         rank_, thread, json_line(Json(name)), rank_, thread, thread);
    }
    // In whole nanoseconds, since a rounded end could pass the end of the enclosing span.
    const int64_t begin = span.begin_ns + offset_ns_, duration = std::max<int64_t>(0, span.end_ns - span.begin_ns);
    const auto micros = [](int64_t ns) {
      return fmt::format("{}{}.{:03d}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
    };
    out += fmt::format(
        R"(,
{{"ph":"X","name":{},"cat":{},"pid":{},"tid":{},"ts":{},"dur":{},"args":{{)",
        quoted(span.name),
        span.category == 0 ? json_line(Json(kTrackNames[static_cast<size_t>(span.track)])) : quoted(span.category),
        rank_, thread, micros(begin), micros(duration));
    const char* separator = "";
    const auto arg = [&](const char* name, const std::string& value) {
      out += fmt::format("{}\"{}\":{}", separator, name, value);
      separator = ",";
    };
    if (span.microbatch >= 0) arg("microbatch", std::to_string(span.microbatch));
    if (span.unit >= 0) arg("unit", std::to_string(span.unit));
    if (is_collective) {
      arg("group", quoted(span.by));
      arg("op", quoted(span.name));
      arg("bytes", std::to_string(span.bytes));
      arg("calls", std::to_string(span.num_calls));
      arg("wait_us", micros(span.wait_ns));
    } else if (span.by != 0) {
      arg("plugin", quoted(span.by));
    }
    out += "}}";
  }
  return out + "\n]}\n";
}

void ScopedSpan::begin(Trace& trace, TraceTrack track, std::string_view name, std::string_view category, int microbatch,
                       int64_t unit, std::string_view by) {
  span_.track = track;
  span_.name = trace.intern(name);
  span_.category = trace.intern(category);
  span_.by = trace.intern(by);
  span_.microbatch = microbatch;
  span_.unit = unit;
  trace_ = &trace;
  span_.begin_ns = Trace::now_ns();
}

void ScopedSpan::end() noexcept {
  span_.end_ns = Trace::now_ns();
  try {
    trace_->add(span_);
  } catch (const std::exception&) {  // no memory for a further span
  }
}

}  // namespace chassis
