// Calls a sink as a run does, with values that are rare in runs.
#include "host/conformance/sink_checks.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <initializer_list>
#include <limits>
#include <thread>
#include <utility>

#include "chassis/kind/sink.h"
#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/conformance/growth.hpp"
#include "host/conformance/temporary_folder.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

using Values = std::vector<std::pair<std::string, double>>;

// A struct as a later minor would send it.
template <typename T>
struct Grown {
  T known{};
  uint64_t later = 0x5a5a5a5a5a5a5a5a;
  Grown() { known.struct_size = sizeof(Grown); }
};

class SinkRun {
 public:
  SinkRun(const Instance& instance, std::string folder)
      : instance_(instance), table_(instance.interface<chassis_sink_t>(CHASSIS_SINK_ID)), folder_(std::move(folder)) {
    page_.known.context = this;
    page_.known.html = [](void* self, uint32_t, void (*write)(void*, chassis_str_t), void* to) -> chassis_status_t* {
      return static_cast<SinkRun*>(self)->answer({"<!doctype html>\n", "<title>a run</title>\n"}, write, to);
    };
    page_.known.data = [](void* self, int64_t, void (*write)(void*, chassis_str_t), void* to) -> chassis_status_t* {
      return static_cast<SinkRun*>(self)->answer({"{\"step\":", "1}"}, write, to);
    };
  }

  // The text of the error; empty if there was none.
  std::string start(int64_t first_step) {
    Grown<chassis_sink_start_t> raw;
    raw.known.run_name = str_of(name_);
    raw.known.output_dir = str_of(folder_);
    raw.known.config = str_of(config_);
    raw.known.first_step = first_step;
    raw.known.max_steps = 40;
    raw.known.time = 1.7e9;
    raw.known.page = &page_.known;
    return taken(table_.start(instance_.get("start"), &raw.known));
  }
  std::string scalars(int64_t step, const Values& values) {
    std::vector<chassis_scalar_t> list;
    for (const auto& [name, value] : values) list.push_back({str_of(name), value});
    Grown<chassis_scalars_t> raw;
    raw.known.num_scalars = static_cast<uint32_t>(list.size());
    raw.known.step = step;
    raw.known.time = 1.7e9 + static_cast<double>(step);
    raw.known.scalars = list.data();
    return taken(table_.scalars(instance_.get("scalars"), &raw.known));
  }
  std::string text(int64_t step, uint32_t type, const std::string& text) {
    if (table_.text == nullptr) return "";
    Grown<chassis_sink_text_t> raw;
    raw.known.type = type;
    raw.known.step = step;
    raw.known.time = 1.7e9 + static_cast<double>(step);
    raw.known.name = str_of(name_);
    raw.known.text = str_of(text);
    return taken(table_.text(instance_.get("text"), &raw.known));
  }
  std::string flush() { return table_.flush == nullptr ? "" : taken(table_.flush(instance_.get("flush"))); }
  std::string finish(int64_t step) {
    Grown<chassis_sink_finish_t> raw;
    raw.known.outcome = CHASSIS_RUN_STOPPED;
    raw.known.step = step;
    raw.known.time = 1.7e9 + static_cast<double>(step);
    raw.known.num_dropped = 3;
    const std::string error = taken(table_.finish(instance_.get("finish"), &raw.known));
    has_ended_ = true;
    return error;
  }
  // The number of reads of the page after finish, by a thread that should have ended.
  uint64_t num_late_reads() const { return num_late_reads_; }

 private:
  static std::string taken(chassis_status_t* status) {
    if (status == nullptr) return "";
    std::string text = status_text(status);
    status_release(status);
    return text.empty() ? "an error without a message" : text;
  }

  chassis_status_t* answer(std::initializer_list<const char*> pieces, void (*write)(void*, chassis_str_t), void* to) {
    if (has_ended_) ++num_late_reads_;
    for (const char* piece : pieces) write(to, str_of(piece));
    return nullptr;
  }

  std::atomic<bool> has_ended_ = false;
  std::atomic<uint64_t> num_late_reads_ = 0;
  const Instance& instance_;
  const chassis_sink_t& table_;
  const std::string folder_;
  Grown<chassis_run_page_t> page_;
  const std::string name_ = "a run, \"quoted\"\n\xc3\xa9";
  const std::string config_ = "{\"run\":{\"name\":\"x\"}}";
};

class SinkExamination {
 public:
  explicit SinkExamination(const std::function<std::unique_ptr<Instance>()>& another) : another_(another) {}

  std::vector<std::string> run() {
    const TemporaryFolder folder("chassis-sink");
    take_run(folder.path());
    go_on(folder.path());
    meet_bad_folders(folder.path());
    if (failures_.empty()) grow(folder.path());
    return std::move(failures_);
  }

 private:
  void expect(const std::string& what, const std::string& error) {
    if (!error.empty()) failures_.push_back(what + " is refused: " + error);
  }

  void take_run(const std::string& folder) {
    const std::unique_ptr<Instance> instance = another_();
    SinkRun run(*instance, folder);
    expect("start", run.start(0));
    for (int64_t step = 1; step <= 20; ++step) {
      Values values = {{"loss", 2.5 / static_cast<double>(step)}, {"comm/tp/all_reduce_bytes", 1e12}, {"lr", 1e-300}};
      if (step > 5) values.emplace_back("a name, with \"quotes\" and \xc3\xa9", -0.0);
      if (step == 7) values.emplace_back("not a number", std::numeric_limits<double>::quiet_NaN());
      if (step == 8) values.emplace_back("infinite", -std::numeric_limits<double>::infinity());
      expect("a step", run.scalars(step, values));
      if (step % 5 == 0) expect("an evaluation", run.scalars(step, {{"eval/held out/loss", 2.0}}));
      if (step == 9) expect("a step without values", run.scalars(step, {}));
      for (const uint32_t type : {CHASSIS_TEXT_SAMPLE, CHASSIS_TEXT_CHECKPOINT, CHASSIS_TEXT_WARNING, 99u})
        expect(fmt::format("a text of type {}", type), run.text(step, type, step == 3 ? "" : "two\nlines, \"x\""));
      expect("flush", run.flush());
    }
    expect("finish", run.finish(20));
    constexpr std::chrono::milliseconds kLate(200);  // gives a thread that outlives finish time to run
    std::this_thread::sleep_for(kLate);
    if (const uint64_t late = run.num_late_reads())
      failures_.push_back(fmt::format("the page of the run is read {} times after finish has returned", late));
  }

  void go_on(const std::string& folder) {
    const std::unique_ptr<Instance> instance = another_();
    SinkRun run(*instance, folder);
    expect("start of a run that goes on", run.start(10));
    expect("a step of a run that goes on", run.scalars(11, {{"loss", 0.5}, {"new here", 1.0}}));
    expect("finish of a run that goes on", run.finish(11));
  }

  // The sink may accept or refuse them.
  void meet_bad_folders(const std::string& folder) {
    const std::string file = folder + "/a file";
    write_file_atomic(file, "x");
    for (const std::string& bad : {folder + "/absent/folder", file}) {
      const std::unique_ptr<Instance> instance = another_();
      SinkRun run(*instance, bad);
      if (!run.start(0).empty()) continue;  // after a refusal, a run makes no further calls
      run.scalars(1, {{"loss", 1.0}});
      run.text(1, CHASSIS_TEXT_WARNING, "x");
      run.flush();
      run.finish(1);
    }
  }

  void grow(const std::string& folder) {
    const std::unique_ptr<Instance> instance = another_();
    SinkRun run(*instance, folder);
    expect("start", run.start(20));
    int64_t step = 20;
    const std::string grown = growth_of("200 steps", 200, [&] {
      expect("a step", run.scalars(++step, {{"loss", 1.0}, {"lr", 2.0}}));
      run.flush();
    });
    if (!grown.empty()) failures_.push_back(grown);
    expect("finish", run.finish(step));
  }

  const std::function<std::unique_ptr<Instance>()>& another_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> sink_failures(const std::function<std::unique_ptr<Instance>()>& another) {
  return SinkExamination(another).run();
}

}  // namespace chassis
