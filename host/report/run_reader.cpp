// metrics.jsonl holds most of the data: its lines are parsed by simdjson. All other files are small.
#include "host/report/run_reader.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <signal.h>
#include <simdjson.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>

#include "host/base/file.hpp"
#include "host/base/printable.hpp"
#include "host/base/unix_time.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxSamples = 64, kMaxEvaluations = 100000, kMaxCheckpoints = 10000;
constexpr size_t kMaxSwaps = 10000;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

using Element = simdjson::dom::element;

// NaN for null, which stands for values that are not finite.
double number_of(const Element& value) {
  double number = kNaN;
  if (value.is_bool()) return static_cast<double>(bool(value));
  if (value.is_number() && value.get(number)) return kNaN;
  return number;
}

double number_or(const Json& object, const char* key, double fallback) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : fallback;
}
int64_t integer_or(const Json& object, const char* key, int64_t fallback) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : fallback;
}
std::string string_or(const Json& object, const char* key, const char* fallback = "") {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : fallback;
}

}  // namespace

std::string_view to_text(RunStatus state) {
  constexpr std::string_view kTexts[] = {"unknown", "running", "done", "stopped", "failed", "killed"};
  return kTexts[static_cast<size_t>(state)];
}

struct RunReader::Parser {
  simdjson::dom::parser parser;
};

RunReader::RunReader(std::string path)
    : path_(std::move(path)),
      metrics_file_(path_ + "/metrics.jsonl"),
      samples_file_(path_ + "/samples.jsonl"),
      events_file_(path_ + "/events.jsonl"),
      parser_(std::make_shared<Parser>()) {
  const PathKind kind = path_kind(path_);
  if (kind == PathKind::kAbsent) throw config_error("'" + path_ + "' does not exist").hint("give a run.output_dir");
  if (kind != PathKind::kDirectory)
    throw config_error("'" + path_ + "' is not a directory").hint("give the run.output_dir of a run");
  if (path_kind_nofollow(path_ + "/run.json") == PathKind::kAbsent &&
      path_kind_nofollow(path_ + "/metrics.jsonl") == PathKind::kAbsent)
    throw config_error("'" + path_ + "' is not a run: it has neither run.json nor metrics.jsonl")
        .hint("give the run.output_dir of a run, whose first step has been taken");
  poll();
}

bool RunReader::poll() {
  for (const auto& [name, json] :
       {std::pair("report.json", &about_), {"run.json", &run_file_}, {"plugins.lock", &plugins_}})
    if (is_replaced(name)) *json = read_json(name);
  if (is_replaced("resolved.toml")) resolved_toml_ = read_text("resolved.toml");
  const bool has_metrics = poll_metrics(), has_samples = poll_samples(), has_events = poll_events();
  const bool has_ranks = poll_ranks();
  return has_metrics || has_samples || has_events || has_ranks;
}

bool RunReader::is_replaced(const std::string& name) {
  struct stat about {};
  std::array<int64_t, 5> version{};  // version of an absent file
  if (::stat((path_ + "/" + name).c_str(), &about) == 0)
    version = {static_cast<int64_t>(about.st_ino), about.st_size, about.st_mtim.tv_sec, about.st_mtim.tv_nsec,
               about.st_mode};
  const auto [known, is_new] = versions_.try_emplace(name, version);
  if (!is_new && known->second == version) return false;
  known->second = version;
  return true;
}

Json RunReader::read_json(const std::string& name) {
  const std::string text = read_text(name);
  if (text.empty()) return {};
  Json json = parse_json_or_null(text);
  if (json.is_object()) return json;
  damaged_files_[name] = name + " is damaged";
  return {};
}

// Empty if the file is absent or cannot be read: a report shows what there is.
std::string RunReader::read_text(const std::string& name) {
  damaged_files_.erase(name);
  try {
    const std::string file = path_ + "/" + name;
    return path_kind(file) == PathKind::kFile ? read_file(file) : "";
  } catch (const Error& error) {
    damaged_files_[name] = error.message();
    return "";
  }
}

bool RunReader::poll_metrics() {
  const auto restart = [this] {
    history_ = History();
    evaluations_.clear();
    scores_.clear();
    damaged_metrics_ = {};
  };
  const auto read = [&] {
    return metrics_file_.poll([this](std::string_view text, uint64_t number) { metrics_line(text, number); }, restart);
  };
  went_back_ = false;
  const auto poll = read();
  has_metrics_ = poll.exists;
  // Between two polls the file was truncated and grew again: the run went on from an earlier step.
  if (went_back_ && poll.num_lines < metrics_file_.num_lines()) {
    restart();
    metrics_file_ = FollowedFile(metrics_file_.path());
    read();
  }
  return poll.num_lines > 0 || poll.restarted;
}

void RunReader::metrics_line(std::string_view text, uint64_t number) {
  simdjson::dom::object line;
  int64_t step = 0;
  if (parser_->parser.parse(text.data(), text.size(), false).get(line) || line["step"].get(step) || step < 1) {
    if (damaged_metrics_.count++ == 0) damaged_metrics_.first_line = number;
    return;
  }
  std::string_view evaluation;
  if (!line["eval"].get(evaluation)) {
    add_evaluation(step, std::string(evaluation), [&](const char* key) {
      Element element;
      return line[key].get(element) ? kNaN : number_of(element);
    });
    return;
  }
  went_back_ |= step <= history_.last_step();
  history_.begin_step(step);
  size_t position = 0;
  for (const auto& [key, value] : line) {
    if (key != "step") history_.set(position, key, number_of(value));
    ++position;
  }
}

// `value` returns the number of a key, NaN if there is none.
template <class Value>
void RunReader::add_evaluation(int64_t step, std::string name, const Value& value) {
  const auto count = [&](const char* key) {
    constexpr double kMost = 1e15;
    const double number = value(key);
    return number >= 0.0 && number <= kMost ? static_cast<uint64_t>(number) : 0;
  };
  if (const double score = value("score"); std::isfinite(score)) {
    if (scores_.size() < kMaxEvaluations)
      scores_.push_back({step, std::move(name), score, count("passed"), count("rows"), count("cut")});
  } else if (evaluations_.size() < kMaxEvaluations) {
    evaluations_.push_back({step, std::move(name), value("eval_loss"), value("perplexity"), value("seconds")});
  }
}

// A file beside metrics.jsonl that cannot be read is a defect of the report, not an error.
bool RunReader::follow(FollowedFile& file, void (RunReader::*take)(std::string_view, uint64_t),
                       const std::function<void()>& restart) {
  const std::string name = file.path().substr(path_.size() + 1);
  damaged_files_.erase(name);
  try {
    const auto poll = file.poll([&](std::string_view text, uint64_t number) { (this->*take)(text, number); }, restart);
    return poll.num_lines > 0 || poll.restarted;
  } catch (const Error& error) {
    damaged_files_[name] = error.message();
    return false;
  }
}

bool RunReader::poll_samples() {
  const auto restart = [this] {
    samples_.clear();
    damaged_samples_ = {};
  };
  return follow(samples_file_, &RunReader::sample_line, restart);
}

void RunReader::sample_line(std::string_view text, uint64_t number) {
  const Json json = parse_json_or_null(text);
  if (!json.is_object() || integer_or(json, "step", 0) < 1) {
    if (damaged_samples_.count++ == 0) damaged_samples_.first_line = number;
    return;
  }
  samples_.push_back({integer_or(json, "step", 0), string_or(json, "prompt"), string_or(json, "answer"),
                      string_or(json, "finish_reason")});
  if (samples_.size() > kMaxSamples) samples_.pop_front();
}

bool RunReader::poll_events() {
  const auto restart = [this] {
    checkpoints_.clear();
    swaps_.clear();
    warnings_.clear();
    outcome_.clear();
    start_time_.reset();
    seconds_before_ = last_time_ = 0.0;
    has_events_ = false;
    damaged_events_ = {};
  };
  return follow(events_file_, &RunReader::event_line, restart);
}

void RunReader::event_line(std::string_view text, uint64_t number) {
  const Json json = parse_json_or_null(text);
  const std::string event = json.is_object() ? string_or(json, "event") : "";
  if (event.empty()) {
    if (damaged_events_.count++ == 0) damaged_events_.first_line = number;
    return;
  }
  has_events_ = true;
  const double before = last_time_;
  last_time_ = number_or(json, "time", last_time_);
  event_step_ = integer_or(json, "step", event_step_);
  if (event == "start") {
    const int64_t step = integer_or(json, "step", 0);
    if (start_time_) seconds_before_ += std::max(0.0, before - *start_time_);
    start_time_ = last_time_;
    host_ = string_or(json, "host");
    process_ = integer_or(json, "process", 0);
    outcome_.clear();
    warnings_.clear();
    // Checkpoints of later steps belong to a run that was set aside.
    std::erase_if(checkpoints_, [&](const SavedCheckpoint& saved) { return saved.step > step; });
    std::erase_if(swaps_, [&](const SwapPoint& swap) { return swap.step > step; });
  } else if (event == "checkpoint") {
    if (checkpoints_.size() < kMaxCheckpoints)
      checkpoints_.push_back({.step = integer_or(json, "step", 0),
                              .time = last_time_,
                              .path = string_or(json, "path"),
                              .num_bytes = static_cast<uint64_t>(std::max<int64_t>(0, integer_or(json, "bytes", 0))),
                              .seconds = number_or(json, "seconds", 0.0),
                              .stall_seconds = number_or(json, "stall_seconds", 0.0),
                              .resumable = json.value("resumable", Json(false)) == Json(true)});
  } else if (event == "swap") {
    SwapPoint swap{.step = integer_or(json, "step", 0),
                   .generation = integer_or(json, "generation", 0),
                   .time = last_time_,
                   .id = string_or(json, "id"),
                   .outcome = string_or(json, "outcome"),
                   .cause = string_or(json, "cause"),
                   .change = string_or(json, "change"),
                   .pause_ms = number_or(json, "pause_ms", 0.0)};
    const bool ends_last = !swaps_.empty() && swaps_.back().id == swap.id && swaps_.back().outcome == "activated";
    if (ends_last)
      swaps_.back() = std::move(swap);
    else if (swaps_.size() < kMaxSwaps)
      swaps_.push_back(std::move(swap));
  } else if (event == "warning") {
    const std::string key = string_or(json, "key");
    const auto count = static_cast<uint64_t>(std::max<int64_t>(1, integer_or(json, "count", 1)));
    const auto known = std::find_if(warnings_.begin(), warnings_.end(), [&](const auto& w) { return w.first == key; });
    if (known != warnings_.end())
      known->second = count;
    else
      warnings_.emplace_back(key, count);
  } else if (event == "end") {
    outcome_ = string_or(json, "outcome");
  }
}

bool RunReader::poll_ranks() {
  std::string text = read_text("ranks.json");
  if (text == ranks_text_) return false;
  const Json json = parse_json_or_null(text);
  if (!json.is_object() || !json.contains("ranks") || !json["ranks"].is_array()) {
    if (!text.empty()) damaged_files_["ranks.json"] = "ranks.json is damaged";
    return false;
  }
  ranks_text_ = std::move(text);
  ranks_.clear();
  for (const Json& rank : json["ranks"]) {
    if (!rank.is_object()) continue;
    RankStatus status{
        .rank = static_cast<int>(integer_or(rank, "rank", 0)),
        .step = integer_or(rank, "step", 0),
        .step_ms = number_or(rank, "step_ms", 0.0),
        .wait_ms = number_or(rank, "wait_ms", 0.0),
        .active_bytes = static_cast<uint64_t>(std::max<int64_t>(0, integer_or(rank, "active_memory_bytes", 0))),
        .temperature = std::nullopt};
    if (rank.contains("temperature")) status.temperature = number_or(rank, "temperature", 0.0);
    ranks_.push_back(status);
  }
  return true;
}

std::string RunReader::name() const {
  const std::string recorded = run_file_.is_object() ? string_or(run_file_, "name") : "";
  if (!recorded.empty()) return recorded;
  const std::filesystem::path path = std::filesystem::absolute(path_).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

int64_t RunReader::max_steps() const { return about_.is_object() ? integer_or(about_, "max_steps", 0) : 0; }

int64_t RunReader::last_step() const { return has_metrics_ ? history_.last_step() : event_step_; }

// A process that was killed records no outcome.
RunStatus RunReader::state() const {
  if (!has_events_ || !start_time_) return RunStatus::kUnknown;
  if (outcome_ == "done") return RunStatus::kDone;
  if (outcome_ == "stopped") return RunStatus::kStopped;
  if (!outcome_.empty()) return RunStatus::kFailed;
  const bool is_here = host_ == host_name() && process_ > 1;
  const bool has_ended = is_here && kill(static_cast<pid_t>(process_), 0) != 0 && errno == ESRCH;
  return has_ended ? RunStatus::kKilled : RunStatus::kRunning;
}

double RunReader::seconds() const {
  if (!start_time_) return 0.0;
  double end = std::max(last_time_, metrics_file_.time());
  if (state() == RunStatus::kRunning)
    end = unix_time();
  else if (!outcome_.empty())
    end = last_time_;
  return seconds_before_ + std::max(0.0, end - *start_time_);
}

std::vector<std::string> RunReader::defects() const {
  std::vector<std::string> texts;
  for (const auto& [file, text] : damaged_files_) texts.push_back(text);
  if (!has_metrics_) texts.push_back("there is no metrics.jsonl: [log] sinks has no \"jsonl\"");
  const std::pair<const Damage&, const char*> all[] = {
      {damaged_metrics_, "metrics.jsonl"}, {damaged_samples_, "samples.jsonl"}, {damaged_events_, "events.jsonl"}};
  for (const auto& [damage, file] : all) {
    if (damage.count == 1)
      texts.push_back(fmt::format("line {} of {} is damaged and left out", damage.first_line, file));
    if (damage.count > 1)
      texts.push_back(fmt::format("{} lines of {} are damaged and left out, the first is line {}", damage.count, file,
                                  damage.first_line));
  }
  if (history_.num_dropped() > 0)
    texts.push_back(fmt::format("{} values of metrics are left out: there are more than {} names",
                                history_.num_dropped(), History::kMaxSeries));
  return texts;
}

}  // namespace chassis
