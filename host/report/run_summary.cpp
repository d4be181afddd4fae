// Text and JSON are made from the same numbers.
#include "host/report/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/report/sparkline.hpp"

namespace chassis {
namespace {

constexpr size_t kRecent = 20;  // buckets for the newest values
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double last_of(const History& history, std::string_view name) {
  const Series* const series = history.find(name);
  return series ? series->last : kUnknown;
}
double recent_of(const History& history, std::string_view name, size_t num_buckets = kRecent) {
  return history.recent_mean(name, num_buckets);
}

std::string state_text(const RunReader& run) {
  const int64_t last = run.last_step(), max = run.max_steps();
  std::string text = run.state() == RunStatus::kUnknown ? "at step " + std::to_string(last)
                                                        : fmt::format("{} at step {}", to_text(run.state()), last);
  if (max > 0) text += fmt::format(" of {}", max);
  if (const double seconds = run.seconds(); seconds > 0.0) text += ", " + duration_text(seconds);
  const double step_ms = recent_of(run.history(), "step_ms");
  if (run.state() == RunStatus::kRunning && max > last && std::isfinite(step_ms))
    text += ", " + duration_text(step_ms / 1000.0 * static_cast<double>(max - last)) + " left";
  return text;
}

class Summary {
 public:
  Summary(const RunReader& run, SummaryStyle style) : run_(run), history_(run.history()), style_(style) {}

  std::string text() {
    head();
    metric("loss", "loss", true);
    evaluations();
    scores();
    metric("grad norm", "grad_norm", false);
    metric("lr", "lr", false);
    metric("tokens/s", "tokens_per_s", false);
    parts();
    expert_loads();
    memory();
    checkpoints();
    swaps();
    ranks();
    warnings();
    return std::move(out_);
  }

 private:
  void line(std::string_view label, const std::string& text) { out_ += fmt::format("  {:<12}{}\n", label, text); }

  void head() {
    out_ += fmt::format("{}  {}\n", printable(run_.name()), state_text(run_));
    std::string where;
    for (const std::string& fact : facts_of(run_)) where += (where.empty() ? "" : " · ") + printable(fact);
    if (!where.empty()) out_ += "  " + where + "\n";
  }

  void metric(std::string_view label, std::string_view name, bool is_loss) {
    const Series* const series = history_.find(name);
    if (!series) return;
    std::string text =
        fmt::format("{:>9} ", metric_text(name, name == "tokens_per_s" ? recent_tokens_per_second(history_)
                                                : name == "lr"         ? series->last
                                                                       : recent_of(history_, name)));
    const size_t used = 2 + 12 + 10 + 42;
    const size_t width = style_.width > used + 10 ? std::min<size_t>(40, style_.width - used) : 10;
    text += fmt::format("{}", sparkline(series->mean, width, style_.unicode));
    if (is_loss)
      text += fmt::format("  from {}, lowest {} at step {}", metric_text(name, series->first),
                          metric_text(name, series->lowest), series->lowest_step);
    else
      text += fmt::format("  {} to {}", metric_text(name, series->lowest), metric_text(name, series->highest));
    if (series->num_not_finite > 0) text += fmt::format(", {} not finite", series->num_not_finite);
    line(label, text);
  }

  void evaluations() {
    std::map<std::string, std::vector<const EvalPoint*>> sets;
    for (const EvalPoint& point : run_.evaluations()) sets[point.name].push_back(&point);
    for (const auto& [name, points] : sets) {
      const auto* best = *std::min_element(points.begin(), points.end(),
                                           [](const auto* a, const auto* b) { return a->loss < b->loss; });
      const double perplexity = points.back()->perplexity;
      line("eval",
           fmt::format("{:>9} {}  {}lowest {:.4f} at step {}", metric_text("loss", points.back()->loss),
                       printable(name), std::isfinite(perplexity) ? fmt::format("perplexity {:.4g}, ", perplexity) : "",
                       best->loss, best->step));
    }
  }

  void scores() {
    std::map<std::string, std::vector<const ScorePoint*>> sets;
    for (const ScorePoint& point : run_.scores()) sets[point.name].push_back(&point);
    for (const auto& [name, points] : sets) {
      const ScorePoint& last = *points.back();
      const auto* best = *std::max_element(points.begin(), points.end(),
                                           [](const auto* a, const auto* b) { return a->score < b->score; });
      line("score",
           fmt::format("{:>9.4f} {}  {} of {} passed, {} cut, highest {:.4f} at step {}", last.score, printable(name),
                       last.num_passed, last.num_rows, last.num_cut, best->score, best->step));
    }
  }

  void parts() {
    const auto all = step_parts(history_, kRecent);
    const double step_ms = recent_of(history_, "step_ms");
    if (all.empty() || !(step_ms > 0.0)) return;
    std::string text = fmt::format("{:>6.4g} ms ", step_ms);
    for (const auto& [name, ms] : all) text += fmt::format(" {} {:.0f} %", name, 100.0 * ms / step_ms);
    line("step", text);
    const double exposed = recent_of(history_, "comm_exposed_ms"), hidden = recent_of(history_, "comm_hidden_ms");
    if (exposed + hidden > 0.0)
      line("", fmt::format("          communication: exposed {:.3g} ms, hidden {:.3g} ms", exposed, hidden));
  }

  // The load of the busiest expert, divided by the mean, by layer over the steps; of many layers the most uneven ones.
  void expert_loads() {
    constexpr std::string_view kPrefix = "router/", kSuffix = "/max_load";
    constexpr size_t kMostLayers = 16;
    std::vector<std::pair<std::string, const Series*>> layers;
    for (const Series& series : history_.series())
      if (series.name.starts_with(kPrefix) && series.name.ends_with(kSuffix))
        layers.emplace_back(series.name.substr(kPrefix.size(), series.name.size() - kPrefix.size() - kSuffix.size()),
                            &series);
    if (layers.empty()) return;
    std::vector<double> loads;
    for (const auto& layer : layers) loads.push_back(layer.second->last);
    std::ranges::sort(loads, std::greater());
    const double least_shown = loads[std::min(loads.size(), kMostLayers) - 1];
    const size_t width = style_.width > 80 ? 40 : 20;
    size_t num_shown = 0;
    for (const auto& [name, series] : layers) {
      if (!(series->last >= least_shown) || num_shown == kMostLayers) continue;
      const double idle = last_of(history_, fmt::format("{}{}/idle_experts", kPrefix, name));
      std::vector<float> known;  // few steps have these metrics
      std::ranges::copy_if(series->mean, std::back_inserter(known), [](float value) { return std::isfinite(value); });
      line(num_shown++ == 0 ? "expert load" : "",
           fmt::format("{:>9.2f} {}  {}, {:.2f} to {:.2f}{}", series->last, sparkline(known, width, style_.unicode),
                       printable(name), series->lowest, series->highest,
                       idle > 0 ? fmt::format(", {:g} without a token", idle) : ""));
    }
    if (num_shown < layers.size())
      line("", fmt::format("          {} layers with less are not shown", layers.size() - num_shown));
  }

  void memory() {
    const double peak = last_of(history_, "peak_memory_bytes");
    if (!(peak > 0.0)) return;
    std::string text = "peak " + bytes_text(static_cast<uint64_t>(peak));
    if (const Json& about = run_.about(); about.is_object() && about.contains("plan") && about["plan"].is_object() &&
                                          about["plan"].value("peak_bytes", Json()).is_number_unsigned())
      text += ", " + bytes_text(about["plan"]["peak_bytes"].get<uint64_t>()) + " planned";
    const double active = last_of(history_, "active_memory_bytes"), kept = last_of(history_, "reserved_memory_bytes");
    if (active > 0.0 && kept > 0.0)
      text += fmt::format("; after a step {} in use, {} reserved", bytes_text(static_cast<uint64_t>(active)),
                          bytes_text(static_cast<uint64_t>(kept)));
    line("memory", text);
  }

  void checkpoints() {
    const std::vector<CheckpointLine> all = checkpoint_lines(run_);
    if (all.empty()) return;
    const CheckpointLine& last = all.back();
    std::string text = fmt::format("{} saved, the last at step {}: ", all.size(), last.step);
    if (last.num_bytes > 0) text += bytes_text(last.num_bytes) + " ";
    if (last.seconds > 0.0) text += fmt::format("in {:.2f} s, stall {:.2f} s, ", last.seconds, last.stall_seconds);
    line("checkpoints", text + last.check);
    for (const CheckpointLine& checkpoint : all)
      if (checkpoint.check != "whole" && checkpoint.check != "removed" && &checkpoint != &last)
        line("", fmt::format("step {}: {}", checkpoint.step, checkpoint.check));
  }

  void swaps() {
    const std::vector<SwapPoint>& all = run_.swaps();
    constexpr size_t kMaxShown = 5;  // the last ones
    const size_t first = all.size() > kMaxShown ? all.size() - kMaxShown : 0;
    for (size_t i = first; i < all.size(); ++i) {
      const SwapPoint& swap = all[i];
      const std::string cause = swap.cause.substr(0, swap.cause.find('\n'));
      line(i == first ? "swaps" : "",
           printable(fmt::format("after step {}: {}, {:.0f} ms, {}{}", swap.step, swap.outcome, swap.pause_ms,
                                 swap.change, cause.empty() ? "" : " (" + cause + ")")));
    }
  }

  void ranks() {
    const std::vector<RankStatus>& all = run_.ranks();
    if (all.size() < 2) return;
    const int slow = straggler(all);
    const auto work = [](const RankStatus& r) { return r.step_ms - r.wait_ms; };
    const auto [least, most] =
        std::minmax_element(all.begin(), all.end(), [&](const auto& a, const auto& b) { return work(a) < work(b); });
    std::string text = fmt::format("{}, own work {:.3g} to {:.3g} ms of a step", all.size(), work(*least), work(*most));
    if (slow >= 0) text += fmt::format("; rank {} holds the others up", all[static_cast<size_t>(slow)].rank);
    line("ranks", text);
  }

  void warnings() {
    for (const PostMortem& found : post_mortems_of(run_))
      line("post-mortem", found.file + ": " + printable(found.error, 160));
    for (const auto& [key, count] : run_.warnings())
      line("warning", printable(key) + (count > 1 ? fmt::format(" ({} times)", count) : " (once)"));
    for (const std::string& defect : run_.defects()) line("damaged", defect);
  }

  const RunReader& run_;
  const History& history_;
  const SummaryStyle style_;
  std::string out_;
};

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

double recent_tokens_per_second(const History& history) {
  return 1000.0 * recent_of(history, "tokens") / recent_of(history, "step_ms");
}

std::string metric_text(std::string_view name, double value) {
  if (!std::isfinite(value)) return "-";
  if (name == "loss" || name.ends_with("/loss")) return fmt::format("{:.4f}", value);
  if (name == "lr") return fmt::format("{:.2e}", value);
  if (name.ends_with("_bytes")) return bytes_text(static_cast<uint64_t>(std::max(0.0, value)));
  if (name.ends_with("tokens_per_s") || name.ends_with("tokens")) return count_text(value);
  return fmt::format("{:.3g}", value);
}

std::string summary_text(const RunReader& run, SummaryStyle style) { return Summary(run, style).text(); }

std::vector<std::pair<std::string, double>> step_parts(const History& history, size_t num_buckets) {
  std::vector<std::pair<std::string, double>> parts;
  double rest = recent_of(history, "step_ms", num_buckets);
  for (const char* name : {"data", "forward", "backward", "optimizer"}) {
    const double ms = recent_of(history, std::string(name) + "_ms", num_buckets);
    if (!std::isfinite(ms)) continue;
    parts.emplace_back(name, ms);
    rest -= ms;
  }
  if (std::isfinite(rest) && rest > 0.0) parts.emplace_back("rest", rest);
  if (const double ms = recent_of(history, "save_ms", num_buckets); ms > 0.0) parts.emplace_back("save", ms);
  return parts;
}

std::vector<std::string> facts_of(const RunReader& run) {
  std::vector<std::string> facts;
  const Json& about = run.about();
  if (!about.is_object()) return facts;
  for (const char* key : {"model", "parameters_text", "device", "mesh", "strategies", "compute"}) {
    const auto found = about.find(key);
    if (found != about.end() && found->is_string() && !found->get<std::string>().empty())
      facts.push_back(found->get<std::string>());
  }
  return facts;
}

// resolved.toml has a line "key = value  # origin" for every key.
std::vector<ConfigValue> config_of(const RunReader& run) {
  std::vector<ConfigValue> values;
  std::map<std::string, int> num_tables;
  std::string table;
  std::istringstream lines(run.resolved_toml());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[[") && line.ends_with("]]")) {
      const std::string name = line.substr(2, line.size() - 4);
      table = fmt::format("{}.{}.", name, num_tables[name]++);
    } else if (line.starts_with('[') && line.ends_with(']')) {
      table = line.substr(1, line.size() - 2) + ".";
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos && !line.starts_with('#')) {
      const size_t comment = line.rfind("  # ");
      const bool has_origin = comment != std::string::npos && comment > equals;
      std::string value = line.substr(equals + 3, has_origin ? comment - equals - 3 : std::string::npos);
      value.erase(value.find_last_not_of(' ') + 1);
      values.push_back({table + line.substr(0, equals), std::move(value), has_origin ? line.substr(comment + 4) : ""});
    }
  }
  return values;
}

std::vector<ConfigDifference> config_differences(const std::vector<const RunReader*>& runs) {
  std::vector<ConfigDifference> all;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const ConfigValue& value : config_of(*runs[i])) {
      if (value.key == "run.name" || value.key == "run.output_dir") continue;
      auto found = std::find_if(all.begin(), all.end(), [&](const auto& d) { return d.key == value.key; });
      if (found == all.end()) {
        all.push_back({value.key, std::vector<std::string>(runs.size())});
        found = std::prev(all.end());
      }
      found->values[i] = value.value;
    }
  }
  std::erase_if(all, [](const ConfigDifference& d) {
    return std::all_of(d.values.begin(), d.values.end(), [&](const auto& value) { return value == d.values[0]; });
  });
  return all;
}

int straggler(const std::vector<RankStatus>& ranks) {
  if (ranks.size() < 2) return -1;
  std::vector<double> work;
  for (const RankStatus& rank : ranks) work.push_back(rank.step_ms - rank.wait_ms);
  std::vector<double> sorted = work;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];
  const auto most = std::max_element(work.begin(), work.end());
  const auto slow = static_cast<size_t>(most - work.begin());
  return *most - median > 0.1 * ranks[slow].step_ms ? static_cast<int>(slow) : -1;
}

std::vector<PostMortem> post_mortems_of(const RunReader& run) {
  constexpr size_t kMost = 64;
  std::vector<PostMortem> all;
  const std::string folder = run.path() + "/post-mortem";
  std::vector<DirectoryEntry> entries;
  try {
    if (path_kind(folder) == PathKind::kDirectory) entries = list_directory(folder);
  } catch (const Error&) {  // cannot be read
  }
  for (const DirectoryEntry& entry : entries) {
    if (entry.kind != PathKind::kFile || !entry.name.ends_with(".json") || all.size() >= kMost) continue;
    Json json;
    try {
      json = parse_json_or_null(read_file(folder + "/" + entry.name));
    } catch (const Error&) {
    }
    const auto value = [&](const char* key) {
      return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
    };
    all.push_back({"post-mortem/" + entry.name, value("kind"), json.is_object() ? value("error") : "damaged"});
  }
  return all;
}

std::vector<CheckpointLine> checkpoint_lines(const RunReader& run) {
  std::map<int64_t, CheckpointLine> lines;
  for (const SavedCheckpoint& saved : run.checkpoints())
    lines[saved.step] = {saved.step,          saved.time,      saved.num_bytes, saved.seconds,
                         saved.stall_seconds, saved.resumable, "removed"};
  std::vector<CheckpointInfo> found;
  try {
    found = list_checkpoints(run.path() + "/checkpoints");
  } catch (const Error&) {  // is being written, or cannot be read
  }
  for (const CheckpointInfo& info : found) {
    if (info.set_aside) continue;
    CheckpointLine& line = lines[info.step];
    line.step = info.step;
    line.resumable = info.resumable;
    if (line.num_bytes == 0) line.num_bytes = info.num_bytes;
    line.check = !info.defect.empty() ? info.defect : !info.unreadable.empty() ? info.unreadable : "whole";
  }
  std::vector<CheckpointLine> all;
  for (auto& [step, line] : lines) all.push_back(std::move(line));
  return all;
}

Json summary_json(const std::vector<const RunReader*>& runs) {
  Json all = {{"schema", "chassis.report/1"}, {"runs", Json::array()}};
  for (const RunReader* run : runs) {
    const History& history = run->history();
    Json json = {{"name", run->name()},      {"path", run->path()},           {"state", to_text(run->state())},
                 {"step", run->last_step()}, {"max_steps", run->max_steps()}, {"seconds", run->seconds()}};
    Json& metrics = json["metrics"] = Json::object();
    for (const Series& series : history.series())
      metrics[series.name] = {{"first", number_or_null(series.first)},
                              {"last", number_or_null(series.last)},
                              {"recent_mean", number_or_null(recent_of(history, series.name))},
                              {"least", number_or_null(series.lowest)},
                              {"least_step", series.lowest_step},
                              {"most", number_or_null(series.highest)},
                              {"most_step", series.highest_step},
                              {"num_not_finite", series.num_not_finite}};
    Json& evaluations = json["evaluations"] = Json::array();
    for (const EvalPoint& point : run->evaluations())
      evaluations.push_back({{"step", point.step},
                             {"name", point.name},
                             {"loss", number_or_null(point.loss)},
                             {"perplexity", number_or_null(point.perplexity)}});
    Json& scores = json["scores"] = Json::array();
    for (const ScorePoint& point : run->scores())
      scores.push_back({{"step", point.step},
                        {"name", point.name},
                        {"score", point.score},
                        {"passed", point.num_passed},
                        {"rows", point.num_rows},
                        {"cut", point.num_cut}});
    Json& checkpoints = json["checkpoints"] = Json::array();
    for (const CheckpointLine& line : checkpoint_lines(*run))
      checkpoints.push_back({{"step", line.step},
                             {"bytes", line.num_bytes},
                             {"seconds", line.seconds},
                             {"stall_seconds", line.stall_seconds},
                             {"resumable", line.resumable},
                             {"check", line.check}});
    Json& swaps = json["swaps"] = Json::array();
    for (const SwapPoint& swap : run->swaps())
      swaps.push_back({{"step", swap.step},
                       {"generation", swap.generation},
                       {"id", swap.id},
                       {"outcome", swap.outcome},
                       {"cause", swap.cause},
                       {"change", swap.change},
                       {"pause_ms", swap.pause_ms}});
    Json& ranks = json["ranks"] = Json::array();
    for (const RankStatus& rank : run->ranks()) {
      ranks.push_back({{"rank", rank.rank},
                       {"step", rank.step},
                       {"step_ms", rank.step_ms},
                       {"comm_exposed_ms", rank.wait_ms},
                       {"active_memory_bytes", rank.active_bytes}});
      if (rank.temperature) ranks.back()["temperature"] = *rank.temperature;
    }
    for (const char* key : {"mesh", "plan"})
      if (const Json& about = run->about(); about.is_object() && about.contains(key)) json[key] = about[key];
    Json& warnings = json["warnings"] = Json::array();
    for (const auto& [key, count] : run->warnings()) warnings.push_back({{"key", key}, {"count", count}});
    json["defects"] = run->defects();
    all["runs"].push_back(std::move(json));
  }
  Json& differences = all["config_differences"] = Json::array();
  for (const ConfigDifference& difference : config_differences(runs))
    differences.push_back({{"key", difference.key}, {"values", difference.values}});
  return all;
}

}  // namespace chassis
