// Gathers what is known, drops the tensors of the step, then writes.
#include "host/train/post_mortem.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/plugin/call.hpp"
#include "host/service/comm_flight.hpp"
#include "host/service/device.hpp"
#include "host/service/step_place.hpp"
#include "host/state/shape.hpp"
#include "host/train/report_file.hpp"

namespace chassis {
namespace {

constexpr size_t kReserveBytes = size_t{4} << 20;
constexpr size_t kMostTensors = 12, kShownTensors = 3, kShownCategories = 3;

std::string shown(uint64_t bytes) { return bytes_text(bytes); }

// The plugin that holds the most memory, if it holds at least a tenth of all.
std::string largest_plugin(const std::vector<PluginMemory>& plugins, uint64_t live_bytes) {
  const PluginMemory* largest = nullptr;
  for (const PluginMemory& plugin : plugins)
    if (!plugin.plugin.empty() && (!largest || plugin.live_bytes > largest->live_bytes)) largest = &plugin;
  if (!largest || largest->live_bytes < live_bytes / 10) return "";
  return fmt::format(" ({} by plugin {})", shown(largest->live_bytes), largest->plugin);
}

// The largest of the tensors that were added; of several with the same memory, the first.
class LargestTensors {
 public:
  template <class Name>
  void add(const Tensor& tensor, const char* kind, const Name& name) {
    if (!tensor) return;
    const uint64_t bytes = tensor.num_bytes();
    if (entries_.size() == kMostTensors && bytes <= entries_.back().bytes) return;
    const void* const data = tensor.data();
    for (const Entry& known : entries_)
      if (known.data == data) return;
    const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.bytes < bytes; });
    entries_.insert(at,
                    {bytes, data, kind, name(), text(Shape(tensor.sizes())), std::string(dtype_name(tensor.dtype()))});
    if (entries_.size() > kMostTensors) entries_.pop_back();
  }

  Json json() const {
    Json out = Json::array();
    for (const Entry& e : entries_)
      out.push_back({{"name", e.name}, {"kind", e.kind}, {"shape", e.shape}, {"dtype", e.dtype}, {"bytes", e.bytes}});
    return out;
  }
  std::string line() const {
    std::string out;
    for (size_t i = 0; i < std::min(kShownTensors, entries_.size()); ++i) {
      const Entry& e = entries_[i];
      out += fmt::format("{}{} {} {} {} ({})", i == 0 ? "" : ", ", e.kind, e.name, e.dtype, e.shape, shown(e.bytes));
    }
    return out;
  }

 private:
  struct Entry {
    uint64_t bytes;
    const void* data;
    const char* kind;
    std::string name, shape, dtype;
  };
  std::vector<Entry> entries_;  // the largest first
};

LargestTensors largest_tensors(const RunState& state) {
  LargestTensors out;
  for (const auto& p : state.parameters().all()) {
    const auto name = [&] { return p->name; };
    out.add(p->shard, "parameter", name);
    out.add(p->value, "gathered parameter", name);
    out.add(p->gradient, "gradient", name);
    out.add(p->reduced, "reduced gradient", name);
    for (const StoredComponent& component : p->components) out.add(component.shard, "parameter", name);
  }
  for (const OptimizerState& stored : state.optimizer->states())
    out.add(stored.tensor, "optimizer state", [&] { return stored.descriptor.fqn; });
  const std::vector<std::string> units = state.model.compiled->program().unit_names();
  if (!state.model.executor) return out;
  state.model.executor->visit_saved(
      [&](int microbatch, size_t unit, const std::string& name, bool by_kernel, const Tensor& tensor) {
        out.add(tensor, by_kernel ? "saved by the kernel of" : "activation",
                [&] { return fmt::format("{}.{} of micro-batch {}", units.at(unit), name, microbatch); });
      });
  return out;
}

}  // namespace

struct PostMortem::Report {
  Json json;
  std::vector<std::string> lines;  // for people
  MemoryUsage usage;
  uint64_t requested_bytes = 0, limit_bytes = 0;
  MemoryCategory category = MemoryCategory::kOther;
  Json advice = Json::array();

  void advise(const std::string& change, uint64_t saved_bytes) {
    if (saved_bytes == 0) return;
    advice.push_back({{"change", change}, {"saves_bytes", saved_bytes}});
  }
};

PostMortem::PostMortem(RunState& state, World& world, const Settings& settings, const MemoryFit& fit)
    : state_(state),
      world_(world),
      settings_(settings),
      fit_(fit),
      reserve_(std::make_unique_for_overwrite<char[]>(kReserveBytes)) {}

void PostMortem::add_out_of_memory(Error& error, const std::string& run_directory) noexcept {
  if (std::exchange(is_done_, true)) return;
  try {
    reserve_.reset();
    drop_memory_cache();
    const Device device = state_.device();
    const bool on_device = device.spec().has_own_memory && device_memory(device).num_failures > 0;
    const std::optional<MemoryFailure> failure = on_device ? std::nullopt : last_memory_failure();
    Report report = report_memory(error.what(), failure ? &*failure : nullptr);
    report.json["kind"] = "out_of_memory";
    if (on_device) {
      const DeviceMemory memory = device_memory(state_.device());
      report.json["device_memory"] = {{"active_bytes", memory.active_bytes},
                                      {"reserved_bytes", memory.reserved_bytes},
                                      {"peak_active_bytes", memory.peak_active_bytes},
                                      {"free_bytes", memory.free_bytes},
                                      {"total_bytes", memory.total_bytes}};
      report.lines.push_back(fmt::format("on {}: peak {} in tensors, {} reserved and {} in use now, of {}",
                                         state_.device().text(), shown(memory.peak_active_bytes),
                                         shown(memory.reserved_bytes), shown(memory.active_bytes),
                                         shown(memory.total_bytes)));
    }
    compare_with_plan(report);
    const LargestTensors tensors = largest_tensors(state_);
    report.json["tensors"] = tensors.json();
    if (const std::string line = tensors.line(); !line.empty()) report.lines.push_back("largest: " + line);
    advise(report);
    if (state_.model.executor) state_.model.executor->forget();
    drop_memory_cache();
    finish(report, error, run_directory);
  } catch (...) {
    counted_warning("post-mortem not written", std::string("no post-mortem: ") + current_error().what());
  }
}

void PostMortem::add_communication_failure(Error& error, const std::string& run_directory) noexcept {
  if (error.code() != ExitCode::kCommunication || std::exchange(is_done_, true)) return;
  try {
    reserve_.reset();
    Report report = report_memory(error.what(), nullptr);
    report.json["kind"] = "communication";
    if (state_.model.executor) state_.model.executor->forget();
    report_hang(report);
    compare_with_plan(report);
    finish(report, error, run_directory);
  } catch (...) {
    counted_warning("post-mortem not written", std::string("no post-mortem: ") + current_error().what());
  }
}

// Reports the rank's place in the step, and its memory: as of the moment in which it ran out, if it did.
PostMortem::Report PostMortem::report_memory(const std::string& error, const MemoryFailure* noted) {
  Report report;
  Json& json = report.json;
  json = {{"schema", "chassis.post_mortem/1"},
          {"kind", nullptr},
          {"run", *settings_.run.name},
          {"rank", world_.rank()},
          {"world_size", world_.size()},
          {"time", static_cast<int64_t>(time(nullptr))},
          {"error", error}};
  MemoryFailure failure;
  if (noted) {
    failure = *noted;
  } else {
    failure.usage = memory_usage();
    failure.plugins = memory_by_plugin();
    failure.place = step_place();
    if (failure.place.node) failure.node = *failure.place.node;
    failure.call = call_in_progress();
    failure.step = current_step();
  }
  report.usage = failure.usage;
  report.requested_bytes = failure.requested_bytes;
  report.limit_bytes = failure.limit_bytes;
  report.category = failure.category;

  report_place(report, failure);
  if (noted)
    json["request"] = {{"bytes", failure.requested_bytes},
                       {"category", memory_category_name(failure.category)},
                       {"plugin", failure.plugin}};
  Json categories = Json::object(), plugins = Json::object();
  for (size_t i = 0; i < kNumMemoryCategories; ++i) {
    const MemoryUsage::Part& part = failure.usage.categories[i];
    if (part.peak_bytes == 0) continue;
    categories[std::string(memory_category_name(static_cast<MemoryCategory>(i)))] = {{"live_bytes", part.live_bytes},
                                                                                     {"peak_bytes", part.peak_bytes}};
  }
  for (const PluginMemory& plugin : failure.plugins)
    if (plugin.peak_bytes > 0)
      plugins[plugin.plugin.empty() ? "host" : plugin.plugin] = {{"live_bytes", plugin.live_bytes},
                                                                 {"peak_bytes", plugin.peak_bytes}};
  json["memory"] = {{"live_bytes", failure.usage.live_bytes},
                    {"peak_bytes", failure.usage.peak_bytes},
                    {"cached_bytes", failure.usage.cached_bytes},
                    {"system_bytes", failure.usage.system_bytes},
                    {"peak_system_bytes", failure.usage.peak_system_bytes},
                    {"limit_bytes", failure.limit_bytes},
                    {"categories", std::move(categories)},
                    {"plugins", std::move(plugins)}};
  std::string asked;
  if (failure.requested_bytes > 0)
    asked =
        fmt::format("asked for {} of {}{}; ", shown(failure.requested_bytes), memory_category_name(failure.category),
                    failure.plugin.empty() ? "" : " by plugin " + failure.plugin);
  report.lines.push_back(fmt::format("memory: {}live {}{}{}, peak {}, {} in free blocks", asked,
                                     shown(failure.usage.live_bytes),
                                     largest_plugin(failure.plugins, failure.usage.live_bytes),
                                     failure.limit_bytes > 0 ? " of a limit of " + shown(failure.limit_bytes) : "",
                                     shown(failure.usage.peak_bytes), shown(failure.usage.cached_bytes)));
  return report;
}

// Reports where in its step the rank was.
void PostMortem::report_place(Report& report, const MemoryFailure& failure) const {
  const StepPlace& place = failure.place;
  const std::vector<std::string> units = state_.model.compiled->program().unit_names();
  const std::string unit = place.unit >= 0 ? units.at(static_cast<size_t>(place.unit)) : "";
  report.json["where"] = {{"step", failure.step}, {"phase", place.phase}, {"call", failure.call}};
  std::string where = failure.step > 0 ? fmt::format("step {}", failure.step) : "before the first step";
  if (*place.phase != '\0') where += fmt::format(", {}", place.phase);
  if (place.microbatch >= 0) {
    report.json["where"]["microbatch"] = place.microbatch;
    where += fmt::format(" of micro-batch {}", place.microbatch);
  }
  if (!unit.empty()) {
    report.json["where"]["unit"] = unit;
    where += ", unit " + unit;
  }
  if (!failure.node.empty()) {
    report.json["where"]["node"] = failure.node;
    where += ", node " + failure.node;
  }
  report.lines.push_back("at: " + where);
  if (!failure.call.empty()) report.lines.push_back("call: " + failure.call);
}

void PostMortem::report_hang(Report& report) {
  const Hang hang = state_.communicator->hang();
  Json waiting = Json::array();
  std::string line;
  if (!hang.call.empty()) line = "this rank waited for " + hang.call;
  if (!hang.silent.empty())
    line += fmt::format("{}rank{} {} did not respond", line.empty() ? "" : "; ", hang.silent.size() == 1 ? "" : "s",
                        fmt::join(hang.silent, ", "));
  for (const auto& [call, ranks] : hang.waiting) {
    waiting.push_back({{"call", call}, {"ranks", ranks}});
    line += fmt::format("{}rank{} {} waited for {}", line.empty() ? "" : "; ", ranks.size() == 1 ? "" : "s",
                        fmt::join(ranks, ", "), call);
  }
  report.json["collective"] = {{"call", hang.call}, {"silent_ranks", hang.silent}, {"waiting", std::move(waiting)}};
  if (!line.empty()) report.lines.push_back(line);
}

// Compares each category, including the bytes requested, with its own peak in the plan.
void PostMortem::compare_with_plan(Report& report) {
  if (!fit_.plan) return;
  const PlanMemory& plan =
      fit_.plan->start.peak_bytes > fit_.plan->step.peak_bytes ? fit_.plan->start : fit_.plan->step;
  MemoryUsage needed = report.usage;
  for (MemoryUsage::Part& part : needed.categories) part.peak_bytes = part.live_bytes;  // what plan_memory() sums
  needed.categories[static_cast<size_t>(report.category)].peak_bytes += report.requested_bytes;
  const PlanMemory now = plan_memory(needed);
  struct Difference {
    PlanCategory category;
    uint64_t planned = 0, needed = 0;
    int64_t difference() const { return static_cast<int64_t>(needed) - static_cast<int64_t>(planned); }
  };
  std::vector<Difference> all;
  for (size_t i = 0; i < kNumPlanCategories; ++i)
    all.push_back({static_cast<PlanCategory>(i), plan.categories[i].peak_bytes, now.categories[i].peak_bytes});
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.difference() > b.difference(); });
  Json categories = Json::array();
  std::string line;
  size_t num_shown = 0;
  for (const Difference& d : all) {
    categories.push_back({{"category", plan_category_name(d.category)},
                          {"planned_bytes", d.planned},
                          {"needed_bytes", d.needed},
                          {"difference_bytes", d.difference()}});
    if (d.difference() <= all.front().difference() / 100 || num_shown++ >= kShownCategories) continue;
    line += fmt::format("{}{}{} +{} ({} of {} planned)", line.empty() ? "" : ", ", plan_category_name(d.category),
                        d.category == PlanCategory::kActivations ? " and workspace" : "",
                        shown(static_cast<uint64_t>(d.difference())), shown(d.needed), shown(d.planned));
  }
  const bool grew = all.front().difference() > 0;
  report.json["plan"] = {{"peak_bytes", fit_.plan->peak_bytes()},
                         {"grew_most", grew ? Json(plan_category_name(all.front().category)) : Json()},
                         {"categories", std::move(categories)}};
  report.lines.push_back(grew ? "above the plan: " + line
                              : "above the plan: nothing; its peak is " + shown(fit_.plan->peak_bytes()));
}

// Uses the numbers at hand, because a plan of every change would need memory and time.
void PostMortem::advise(Report& report) {
  const CompiledProgram& compiled = *state_.model.compiled;
  const uint64_t activations = compiled.planned_activation_bytes(fit_.recompute);
  for (const RecomputeModeSpec& spec : kRecomputeModes) {
    const uint64_t then = compiled.planned_activation_bytes(spec.everywhere);
    if (then < activations) report.advise(fmt::format("recompute.mode = \"{}\"", spec.name), activations - then);
  }
  if (const int64_t rows = settings_.train.micro_batch_size; rows > 1)
    report.advise(fmt::format("train.micro_batch_size = {}", rows / 2),
                  activations / static_cast<uint64_t>(rows) * static_cast<uint64_t>(rows - rows / 2));
  std::stable_sort(report.advice.begin(), report.advice.end(),
                   [](const Json& a, const Json& b) { return a["saves_bytes"] > b["saves_bytes"]; });
  for (const Json& one : report.advice)
    report.lines.push_back(fmt::format("try {}, which saves about {}", one["change"].get<std::string>(),
                                       shown(one["saves_bytes"].get<uint64_t>())));
  report.json["advice"] = report.advice;
}

void PostMortem::finish(Report& report, Error& error, const std::string& run_directory) {
  if (report.json["kind"] == "out_of_memory") {
    const uint64_t limit = report.limit_bytes;
    const std::string command = fmt::format("chassis plan {}/resolved.toml --world {}{}", run_directory, world_.size(),
                                            limit > 0 ? fmt::format(" --memory {}B", limit) : " --memory SIZE");
    report.json["command"] = command;
    report.lines.push_back(command + " plans such changes in full");
  }
  const std::string path = write_report(run_directory + "/post-mortem", world_.rank(), json_line(report.json) + "\n");
  std::string note = "  post-mortem: " + path;
  for (const std::string& line : report.lines) note += "\n    " + line;
  error.note(std::move(note));
  if (report.json["kind"] == "out_of_memory") error.with("post-mortem", path);
}

}  // namespace chassis
