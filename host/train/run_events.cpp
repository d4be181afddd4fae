// One JSON object a line: {"event":"checkpoint","time":1764300000.2,"step":100,…}.
#include "host/train/run_events.hpp"

#include <unistd.h>

#include <string_view>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/unix_time.hpp"

namespace chassis {
namespace {

class EventsSink final : public MetricsSink {
 public:
  EventsSink(const std::string& path, int64_t first_step)
      : file_(File::open_or_create_own(path)), offset_(file_.size()) {
    // A line that was cut short by a kill must not continue in the next one.
    char last = '\n';
    if (offset_ > 0) file_.pread_exact(&last, 1, offset_ - 1);
    if (last != '\n') write("\n");
    add("start", {{"step", first_step}, {"host", host_name()}, {"process", getpid()}});
    add_warnings();
  }

  // Plugin sinks count their dropped records when they finish, which is after this sink.
  ~EventsSink() override {
    if (num_counted_warnings() != num_warnings_) add_warnings();
  }

  void step(const StepRecord&) override {
    if (num_counted_warnings() != num_warnings_) add_warnings();
  }
  void evaluation(const EvalRecord&) override {}
  void sample(const SampleRecord&) override {}
  void checkpoint(int64_t step, const SaveResult& result) override {
    add("checkpoint", {{"step", step},
                       {"path", result.path},
                       {"bytes", result.num_bytes},
                       {"seconds", result.seconds},
                       {"stall_seconds", result.stall_seconds},
                       {"resumable", result.resumable}});
  }
  void swap(const SwapRecord& record) override {
    Json event = {{"step", record.step},       {"generation", record.generation}, {"id", record.id},
                  {"outcome", record.outcome}, {"cause", record.cause},           {"change", record.change}};
    for (const auto& [name, value] : record.values) event[name] = value;
    add("swap", std::move(event));
  }
  void finish(RunOutcome outcome, int64_t step) override {
    num_warnings_ = 0;  // all of them again, with their final counts
    add_warnings();
    const char* const text = outcome == RunOutcome::kDone      ? "done"
                             : outcome == RunOutcome::kStopped ? "stopped"
                                                               : "failed";
    add("end", {{"step", step}, {"outcome", text}});
  }

 private:
  void add_warnings() {
    const auto warnings = counted_warnings();
    for (; num_warnings_ < warnings.size(); ++num_warnings_)
      add("warning", {{"key", warnings[num_warnings_].first}, {"count", warnings[num_warnings_].second}});
  }

  void add(const char* event, Json values) {
    Json line = {{"event", event}, {"time", unix_time()}};
    line.update(values);
    write(json_line(line) + "\n");
  }
  void write(std::string_view text) {
    try {
      file_.pwrite_exact(text.data(), text.size(), offset_);
      offset_ += text.size();
    } catch (const Error& cause) {
      if (!std::exchange(has_failed_, true)) counted_warning("lines missing from events.jsonl", cause.message());
    }
  }

  File file_;
  uint64_t offset_ = 0;
  size_t num_warnings_ = 0;
  bool has_failed_ = false;
};

}  // namespace

std::unique_ptr<MetricsSink> make_events_sink(const std::string& path, int64_t first_step) {
  return std::make_unique<EventsSink>(path, first_step);
}

}  // namespace chassis
