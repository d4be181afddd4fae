// A queue, and a thread that empties it into the plugin.
#include "host/train/plugin_sink.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "chassis/kind/sink.h"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/thread.hpp"
#include "host/base/unix_time.hpp"
#include "host/plugin/status.hpp"
#include "host/report/page.hpp"

namespace chassis {
namespace {

NamedValues values_of(const StepRecord& r) {
  NamedValues values;
  r.for_each_value([&](const auto& name, auto value) { values.emplace_back(name, static_cast<double>(value)); });
  return values;
}

struct Record {
  int64_t step = 0;
  double time = 0.0;
  NamedValues values = {};  // empty: a text
  uint32_t type = 0;
  std::string name = {}, text = {};
};

// The page of the run for a sink.
class SinkPage {
 public:
  explicit SinkPage(std::string directory) : directory_(std::move(directory)) {
    raw_.struct_size = sizeof raw_;
    raw_.context = this;
    raw_.html = [](void* self, uint32_t is_live, Write write, void* to) {
      return static_cast<SinkPage*>(self)->give(write, to,
                                                [&](const RunReader& run) { return page_html({&run}, is_live != 0); });
    };
    raw_.data = [](void* self, int64_t since, Write write, void* to) {
      return static_cast<SinkPage*>(self)->give(write, to, [&](const RunReader& run) { return live_data(run, since); });
    };
  }
  const chassis_run_page_t* raw() const { return &raw_; }

 private:
  using Write = void (*)(void* to, chassis_str_t text);

  // Writes without the lock, since the reader of the text may be slow, or ask again.
  template <typename Make>
  chassis_status_t* give(Write write, void* to, Make&& make) {
    return guarded([&] { write(to, str_of(read(make))); });
  }
  template <typename Make>
  std::string read(Make&& make) {
    const std::lock_guard lock(mutex_);
    if (reader_)
      reader_->poll();
    else
      reader_.emplace(directory_);
    return make(*reader_);
  }

  const std::string directory_;
  chassis_run_page_t raw_{};
  std::mutex mutex_;
  std::optional<RunReader> reader_;
};

// Shared with the thread, which may outlive the sink if the plugin does not return.
class Worker {
 public:
  Worker(std::unique_ptr<Instance> instance, SinkStart start, size_t capacity)
      : instance_(std::move(instance)),
        table_(instance_->interface<chassis_sink_t>(CHASSIS_SINK_ID)),
        start_(std::move(start)),
        capacity_(capacity) {
    instance_->require(CHASSIS_SINK_ID,
                       {{"start", table_.start}, {"scalars", table_.scalars}, {"finish", table_.finish}});
  }

  void push(Record record) {
    if (has_refused_) return;
    if (record.values.empty() && table_.text == nullptr) return;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.size() >= capacity_) {
        ++num_dropped_;
        return;
      }
      queue_.push_back(std::move(record));
    }
    changed_.notify_one();
  }
  void close(RunOutcome outcome, int64_t step) {
    {
      const std::lock_guard lock(mutex_);
      outcome_ = outcome, last_step_ = step, is_closed_ = true;
    }
    changed_.notify_one();
  }
  // False if the thread has not ended within `limit`.
  bool wait_ended(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return has_ended_; });
  }
  // [control] Called after the thread has ended.
  void destroy_instance() { instance_.reset(); }
  // The number of records that the plugin will never get.
  uint64_t num_lost() {
    const std::lock_guard lock(mutex_);
    return num_dropped_ + (has_ended_ ? 0 : queue_.size());
  }

  void run() {
    if (!call("start", [&] { return start(); })) {
      has_refused_ = true;
      const std::lock_guard lock(mutex_);
      queue_.clear();
      has_ended_ = true;
      changed_.notify_all();
      return;
    }
    while (std::optional<Record> record = next()) {
      if (record->values.empty())
        call("text", [&] { return text(*record); });
      else
        call("scalars", [&] { return scalars(*record); });
      if (table_.flush != nullptr && is_idle()) call("flush", [&] { return table_.flush(instance_->get("flush")); });
    }
    call("finish", [&] { return finish(); });
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

 private:
  std::optional<Record> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !queue_.empty() || is_closed_; });
    if (queue_.empty()) return std::nullopt;
    Record record = std::move(queue_.front());
    queue_.pop_front();
    return record;
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return queue_.empty();
  }

  // False if it failed.
  template <typename Call>
  bool call(const char* function, Call&& body) {
    try {
      instance_->check(call_plugin(body));
      return true;
    } catch (const std::exception& error) {
      report(function, error.what());
      return false;
    }
  }
  void report(const char* function, const std::string& what) noexcept {
    try {
      const std::string sink = "sink '" + id_ + "' failed";
      counted_warning(sink, sink + " in " + function + ", and the run continues: " + what);
    } catch (const std::bad_alloc&) {  // the training thread reports it
    }
  }

  chassis_status_t* start() {
    chassis_sink_start_t raw{};
    raw.struct_size = sizeof raw;
    raw.run_name = str_of(start_.run_name);
    raw.output_dir = str_of(start_.output_dir);
    raw.config = str_of(start_.config);
    raw.first_step = start_.first_step;
    raw.max_steps = start_.max_steps;
    raw.time = unix_time();
    raw.page = page_.raw();
    return table_.start(instance_->get("start"), &raw);
  }
  chassis_status_t* scalars(const Record& record) {
    std::vector<chassis_scalar_t> list;
    list.reserve(record.values.size());
    for (const auto& [name, value] : record.values) list.push_back({str_of(name), value});
    chassis_scalars_t raw{};
    raw.struct_size = sizeof raw;
    raw.num_scalars = static_cast<uint32_t>(list.size());
    raw.step = record.step;
    raw.time = record.time;
    raw.scalars = list.data();
    return table_.scalars(instance_->get("scalars"), &raw);
  }
  chassis_status_t* text(const Record& record) {
    chassis_sink_text_t raw{};
    raw.struct_size = sizeof raw;
    raw.type = record.type;
    raw.step = record.step;
    raw.time = record.time;
    raw.name = str_of(record.name);
    raw.text = str_of(record.text);
    return table_.text(instance_->get("text"), &raw);
  }
  chassis_status_t* finish() {
    chassis_sink_finish_t raw{};
    raw.struct_size = sizeof raw;
    raw.time = unix_time();
    {
      const std::lock_guard lock(mutex_);
      raw.outcome = outcome_ == RunOutcome::kDone      ? CHASSIS_RUN_DONE
                    : outcome_ == RunOutcome::kStopped ? CHASSIS_RUN_STOPPED
                                                       : CHASSIS_RUN_FAILED;
      raw.step = last_step_;
      raw.num_dropped = num_dropped_;
    }
    return table_.finish(instance_->get("finish"), &raw);
  }

  std::unique_ptr<Instance> instance_;
  const std::string id_ = instance_->id();
  const chassis_sink_t table_;
  const SinkStart start_;
  const size_t capacity_;
  SinkPage page_{start_.output_dir};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Record> queue_;
  uint64_t num_dropped_ = 0;
  bool is_closed_ = false, has_ended_ = false;
  std::atomic<bool> has_refused_ = false;  // start failed
  RunOutcome outcome_ = RunOutcome::kFailed;
  int64_t last_step_ = 0;
};

class PluginSink final : public MetricsSink {
 public:
  PluginSink(std::unique_ptr<Instance> instance, SinkStart start, SinkLimits limits)
      : id_(instance->id()),
        limits_(limits),
        worker_(std::make_shared<Worker>(std::move(instance), std::move(start), limits.queued)),
        thread_("sink", [worker = worker_] { worker->run(); }) {}
  ~PluginSink() override { finish(RunOutcome::kFailed, last_step_); }

  void step(const StepRecord& r) override {
    last_step_ = r.step;
    push({.step = r.step, .values = values_of(r)});
    if (num_counted_warnings() == num_warnings_) return;
    const auto warnings = counted_warnings();
    for (; num_warnings_ < warnings.size(); ++num_warnings_)
      push({.step = r.step, .type = CHASSIS_TEXT_WARNING, .name = "warning", .text = warnings[num_warnings_].first});
  }
  void evaluation(const EvalRecord& r) override {
    const std::string prefix = "eval/" + r.name + "/";
    NamedValues values = {{prefix + "loss", r.loss}};
    r.for_each_value(
        [&](const auto& name, auto value) { values.emplace_back(prefix + name, static_cast<double>(value)); });
    push({.step = r.step, .values = std::move(values)});
  }
  void score(const ScoreRecord& r) override {
    const std::string prefix = "eval/" + r.name + "/";
    push({.step = r.step,
          .values = {{prefix + "score", r.score()},
                     {prefix + "cut", static_cast<double>(r.num_cut)},
                     {prefix + "rows", static_cast<double>(r.num_rows)},
                     {prefix + "seconds", r.seconds}}});
  }
  void sample(const SampleRecord& r) override {
    push({.step = r.step,
          .type = CHASSIS_TEXT_SAMPLE,
          .name = "sample/" + std::to_string(r.index),
          .text = r.prompt + r.answer});
  }
  void checkpoint(int64_t step, const SaveResult& result) override {
    push({.step = step, .type = CHASSIS_TEXT_CHECKPOINT, .name = "checkpoint", .text = result.path});
  }

  void finish(RunOutcome outcome, int64_t step) override {
    if (!thread_.joinable()) return;
    worker_->close(outcome, step);
    if (worker_->wait_ended(limits_.finish)) {
      thread_.join();
      worker_->destroy_instance();
    } else {
      thread_.detach();  // the process ends without it
      const std::string sink = "sink '" + id_ + "' does not end";
      counted_warning(sink, sink + " within " + std::to_string(limits_.finish.count() / 1000) + " s; it is abandoned");
    }
    if (const uint64_t lost = worker_->num_lost()) {
      const std::string records = "records that sink '" + id_ + "' did not get";
      counted_warning(records, std::to_string(lost) + " " + records + ", since it was slower than the run", lost);
    }
  }

 private:
  void push(Record record) {
    record.time = unix_time();
    worker_->push(std::move(record));
  }

  const std::string id_;
  const SinkLimits limits_;
  const std::shared_ptr<Worker> worker_;
  Thread thread_;
  int64_t last_step_ = 0;
  size_t num_warnings_ = 0;  // already handed on
};

}  // namespace

std::unique_ptr<MetricsSink> make_plugin_sink(std::unique_ptr<Instance> instance, SinkStart start, SinkLimits limits) {
  return std::make_unique<PluginSink>(std::move(instance), std::move(start), limits);
}

}  // namespace chassis
