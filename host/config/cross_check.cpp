// The rules about everything but data.
#include "host/config/cross_check.hpp"

#include <fmt/core.h>
#include <limits.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/base/printable.hpp"
#include "host/config/paths.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/suggest.hpp"

namespace chassis {
namespace {

bool is_sha256(const std::string& text) {
  return text.size() == 71 && text.starts_with("sha256:") &&
         text.find_first_not_of("0123456789abcdefABCDEF", 7) == std::string::npos;
}

}  // namespace

void Config::cross_check() { CrossCheck(*this).run(); }

void CrossCheck::run() {
  // A rule passes over keys with which an earlier one has found a problem.
  constexpr void (CrossCheck::*kRules[])() = {
      &CrossCheck::check_version,       &CrossCheck::check_availability,
      &CrossCheck::check_length,        &CrossCheck::check_plugins,
      &CrossCheck::check_name,          &CrossCheck::check_resume,
      &CrossCheck::check_folders,       &CrossCheck::check_pins,
      &CrossCheck::check_precision,     &CrossCheck::check_model,
      &CrossCheck::check_freeze,        &CrossCheck::check_adapter,
      &CrossCheck::check_quant,         &CrossCheck::check_presence_of_data,
      &CrossCheck::check_tokenizer,     &CrossCheck::check_data_sets,
      &CrossCheck::check_data_task,     &CrossCheck::check_generation_sets,
      &CrossCheck::check_evaluation,    &CrossCheck::check_best,
      &CrossCheck::check_skipped_steps, &CrossCheck::check_mesh,
      &CrossCheck::check_batches,       &CrossCheck::check_recompute,
      &CrossCheck::check_schedule,      &CrossCheck::check_export,
      &CrossCheck::check_generation,    &CrossCheck::check_trace,
      &CrossCheck::check_plugin_lists,
  };
  for (const auto rule : kRules) (this->*rule)();
}

std::string CrossCheck::shown(std::string_view key) const { return fmt::format("{} = {}", key, toml_text(*find(key))); }

bool CrossCheck::exists(const std::string& key) {
  try {
    return path_kind(get_string(key)) != PathKind::kAbsent;
  } catch (const Error& cause) {
    add_problem(key, config_error(fmt::format("{}: {}", key, cause.message())));
    return true;
  }
}

int64_t CrossCheck::max_steps() const { return valid("run.max_steps") ? get_int("run.max_steps") : 0; }

void CrossCheck::check_version() {
  if (valid("schema_version") && get_int("schema_version") != kSchemaVersion) {
    add_problem("schema_version", fmt::format("schema_version {} is unknown: this program understands version {}",
                                              get_int("schema_version"), kSchemaVersion));
  }
}

void CrossCheck::check_availability() {
  for (const Unavailable& entry : unavailable()) {
    const std::string key(entry.key);
    if (!entry.value.empty() ? !is(key, entry.value) : !valid(key) || !set_by_user(key)) continue;
    const TomlValue& value = *find(key);
    if (value.is_array() && value.children.empty()) continue;  // a default, written out
    const std::string what = !entry.value.empty() ? shown(key) : value.is_table() ? "[" + key + "]" : key;
    add_problem(key, fmt::format("{} is not available in this version: {}", what, entry.instead));
  }
}

void CrossCheck::check_length() {
  if (!both("run.max_steps", "run.epochs")) return;
  const bool steps = get_int("run.max_steps") > 0, epochs = get_double("run.epochs") > 0;
  if (!steps && !epochs && is_needed("run.max_steps", config_.use()))
    add_problem("run", "the run has no length: set run.max_steps or run.epochs");
  if (steps && epochs) {
    add_problem("run.epochs", fmt::format("{} and {} both say how long the run is (set one of them to 0)",
                                          shown("run.max_steps"), shown("run.epochs")));
  }
}

void CrossCheck::check_plugins() {
  for (const PluginSlot& slot : config_.plugin_slots()) {
    const std::string one = slot.key + ".plugin", list = slot.table + ".plugins", key = has(one) ? one : list;
    const bool may_be_none = slot.table == "tokenizer";
    if (slot.plugin.empty() && has(key) && !may_be_none)
      add_problem(key, fmt::format("{} names no plugin", shown(key)));
  }
}

void CrossCheck::check_name() {
  if (!valid("run.name")) return;
  const std::string& name = get_string("run.name");
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    add_problem("run.name", fmt::format("{} is not a valid folder name; run.output_dir is out/<run.name> unless it is "
                                        "set",
                                        shown("run.name")));
  if (name.size() > NAME_MAX)
    add_problem("run.name", fmt::format("run.name: {} is too long: at most {} bytes are allowed, since "
                                        "run.output_dir is out/<run.name> unless it is set",
                                        printable(name, 40), NAME_MAX));
}

void CrossCheck::check_resume() {
  constexpr const char* kKey = "run.resume";
  if (config_.use() != ConfigUse::kTraining || !valid(kKey) || is(kKey, Resume::kAuto) || is(kKey, Resume::kNever) ||
      exists(kKey))
    return;
  const std::string near = nearest(get_string(kKey), {"auto", "never"});
  add_problem(kKey, fmt::format("{} is neither \"auto\" nor \"never\" nor an existing checkpoint{}", shown(kKey),
                                near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
}

void CrossCheck::check_folders() {
  for (const char* key : {"run.output_dir", "data.cache_dir"}) {
    if (!valid(key)) continue;
    if (const std::string reason = why_not_writable(get_string(key)); !reason.empty())
      add_problem(key, fmt::format("{} cannot hold files of a run: {}", shown(key), reason));
    for (const auto& part : std::filesystem::path(get_string(key))) {
      if (part.native().size() <= NAME_MAX || !set_by_user(key)) continue;
      add_problem(key, fmt::format("{}: the name {} is too long: file systems allow {} bytes", key,
                                   printable(part.native(), 40), NAME_MAX));
    }
  }
}

void CrossCheck::check_pins() {
  const TomlValue* pins = find("plugins.pin");
  if (pins == nullptr || !pins->is_table()) return;
  for (const TomlValue& pin : pins->children) {
    if (pin.type == ValueType::kString && is_sha256(pin.string)) continue;
    config_.add_problem_at(pin.origin.where,
                           fmt::format("plugins.pin.{} = {} is not a pin: expected \"sha256:\" and 64 hex digits",
                                       toml_key(pin.name), toml_text(pin)));
  }
}

void CrossCheck::check_precision() {
  if (is("precision.reduce", ReduceDtype::kBf16) && count("parallel") == 0) {
    add_problem("precision.reduce",
                fmt::format("{} has no effect: without [[parallel]] no gradient is sent", shown("precision.reduce")));
  }
}

void CrossCheck::check_model() {
  const bool path = has("model.path"), described = has("model.config");
  if (!path && !described && !is_invalid("model.path") && !is_invalid("model.config")) {
    add_problem("model", "the model is missing: set model.path, or model.plugin and model.config");
  } else if (path && described) {
    add_problem("model.config",
                fmt::format("{} and model.config both say what the model is (remove one)", shown("model.path")));
  } else if (described && !has("model.plugin") && !is_invalid("model.plugin")) {
    add_problem("model.config", "model.config needs model.plugin (chassis plugins list shows the models)");
  } else if (described && is("model.init", ModelInit::kPretrained)) {
    add_problem("model.init", "model.init = \"pretrained\" needs model.path: model.config has no weights");
  }
}

void CrossCheck::check_freeze() {
  if (both("freeze.patterns", "freeze.train_only") && !get_list("freeze.patterns").empty() &&
      !get_list("freeze.train_only").empty()) {
    add_problem("freeze.train_only", "freeze.patterns and freeze.train_only contradict each other (use one of them)");
  }
}

void CrossCheck::check_adapter() {
  const bool adapts = has("adapter.plugin"), merges = is_true("export.merge");
  if (merges && !adapts && !is_invalid("adapter.plugin"))
    add_problem("export.merge", "export.merge = true merges an adapter, and there is no [adapter]");
  if (merges && is("export.plugin", "peft"))
    add_problem("export.plugin",
                "export.plugin = \"peft\" writes an adapter alone, and export.merge = true the whole "
                "model (remove one)");
  if (adapts && !merges && !is("export.plugin", "peft") && valid("export.plugin") &&
      !is("export.when", ExportWhen::kNever))
    add_problem("export.plugin",
                config_error(fmt::format("{} writes whole models, and [adapter] trains a small part of one",
                                         shown("export.plugin")))
                    .hint("export.merge = true writes the merged model; export.plugin = \"peft\", the default, writes "
                          "the adapter alone"));
}

void CrossCheck::check_quant() {
  const bool quantizes = has("quant.plugin") && !is_invalid("quant.plugin");
  if (quantizes && !has("adapter.plugin") && config_.use() == ConfigUse::kTraining)
    add_problem("quant.plugin", config_error("[quant] needs an [adapter]: quantized parameters cannot be trained")
                                    .hint("add [adapter] with plugin = \"lora\", or remove [quant]"));
}

void CrossCheck::check_skipped_steps() {
  constexpr const char* kKey = "train.max_skipped_steps";
  if (!set_by_user(kKey) || !valid(kKey) || !is("train.nonfinite", NonFinite::kStop)) return;
  if (toml_text(*find(kKey)) == config_.schema_->find("train")->find("max_skipped_steps")->default_json) return;
  add_problem(kKey,
              fmt::format("{} has no effect with {} (it belongs to \"skip\")", shown(kKey), shown("train.nonfinite")));
}

int64_t CrossCheck::data_parallel_size() const {
  int64_t size = 1;
  for (const AxisSpec& axis : kMeshAxes)
    if (const std::string key = mesh_key(axis.name); divides_rows(axis.name) && valid(key) && get_int(key) > 0)
      size *= get_int(key);
  return size;
}

void CrossCheck::check_mesh() {
  std::vector<std::string> rests;
  std::string default_rest;
  for (const AxisSpec& axis : kMeshAxes) {
    const std::string key = mesh_key(axis.name);
    if (axis.takes_rest) default_rest = key;
    if (!axis.may_take_rest() || !valid(key)) continue;
    if (get_int(key) == 0)
      add_problem(key, fmt::format("{} = 0 is out of range: must be at least 1, or -1 for the rest", key));
    if (get_int(key) == -1) rests.push_back(key);
  }
  if (rests.size() > 1)
    add_problem(rests[0], fmt::format("{} and {} are both -1: only one can be the rest ({} is -1 by default)", rests[0],
                                      rests[1], default_rest));
}

void CrossCheck::check_batches() {
  if (!both("train.micro_batch_size", "train.global_batch_size")) return;
  try {
    batch_sizes(config_.settings(), data_parallel_size());
  } catch (const Error& e) {
    add_problem("train.global_batch_size", e.message());
  }
}

void CrossCheck::check_recompute() {
  const bool is_auto = is("recompute.mode", RecomputeMode::kAuto);
  if (!valid("recompute.blocks") || !(is_auto || is("recompute.mode", RecomputeMode::kNone))) return;
  add_problem("recompute.blocks",
              fmt::format("{} has no effect with {} ({})", shown("recompute.blocks"), shown("recompute.mode"),
                          is_auto ? "which takes the fewest that fit" : "it belongs to \"selective\" and \"full\""));
}

void CrossCheck::check_schedule() {
  const bool is_set = valid("schedule.name"), is_wsd = is("schedule.name", Curve::kWsd);
  const int64_t warmup = valid("schedule.warmup_steps") ? get_int("schedule.warmup_steps") : 0;
  const int64_t decay = valid("schedule.decay_steps") ? get_int("schedule.decay_steps") : 0;
  const bool is_constant = is("schedule.name", Curve::kConstant);
  if (is_wsd && decay == 0 && valid("schedule.decay_steps")) {
    add_problem("schedule.name", "schedule.name = \"wsd\" needs schedule.decay_steps");
  }
  if (is_set && !is_wsd && set_by_user("schedule.decay_steps") && decay > 0) {
    add_problem("schedule.decay_steps", fmt::format("{} has no effect with {} (it belongs to \"wsd\")",
                                                    shown("schedule.decay_steps"), shown("schedule.name")));
  }
  if (is_constant && set_by_user("schedule.min_lr_ratio") && valid("schedule.min_lr_ratio") &&
      get_double("schedule.min_lr_ratio") > 0) {
    add_problem("schedule.min_lr_ratio",
                fmt::format("{} has no effect with schedule.name = \"constant\" (try \"cosine\")",
                            shown("schedule.min_lr_ratio")));
  }
  if (max_steps() > 0 && warmup > max_steps()) {
    add_problem("schedule.warmup_steps",
                fmt::format("{} is longer than the run: {}", shown("schedule.warmup_steps"), shown("run.max_steps")));
  } else if (max_steps() > 0 && is_wsd && warmup + decay > max_steps()) {
    add_problem("schedule.decay_steps",
                fmt::format("schedule.warmup_steps + schedule.decay_steps = {} + {} = {} is longer than the run: {}",
                            warmup, decay, warmup + decay, shown("run.max_steps")));
  }
}

void CrossCheck::check_export() {
  if (valid("export.dtype") && !is("export.dtype", DtypeChoice::kAuto) && is("export.when", ExportWhen::kNever)) {
    add_problem("export.dtype", fmt::format("{} has no effect with {} (`chassis ckpt export` takes --dtype)",
                                            shown("export.dtype"), shown("export.when")));
  }
}

void CrossCheck::check_generation() {
  // Without a temperature, generation_config.json of a model directory may still request sampling.
  const bool is_greedy = has("generate.temperature")
                             ? valid("generate.temperature") && get_double("generate.temperature") == 0
                             : !has("model.path");
  const auto refuse_when_greedy = [&](const std::string& key, bool has_effect) {
    if (is_greedy && has_effect)
      add_problem(key, fmt::format("{} has no effect with generate.temperature = 0.0, which is greedy", shown(key)));
  };
  refuse_when_greedy("generate.top_p", valid("generate.top_p") && get_double("generate.top_p") < 1);
  refuse_when_greedy("generate.top_k", valid("generate.top_k") && get_int("generate.top_k") > 0);
  refuse_when_greedy("generate.min_p", valid("generate.min_p") && get_double("generate.min_p") > 0);
}

void CrossCheck::check_trace() {
  constexpr const char* kKey = "log.trace";
  if (!valid(kKey) || count(kKey) == 0) return;
  const std::vector<TomlValue>& steps = find(kKey)->children;
  const int64_t first = steps.front().integer, last = steps.back().integer;
  if (steps.size() != 2)
    add_problem(kKey,
                fmt::format("{} has {} number{}: expected [first, last], the steps to trace, such as [{}, {}], or []",
                            shown(kKey), steps.size(), steps.size() == 1 ? "" : "s", first, std::max(first, last)));
  else if (first > last)
    add_problem(kKey, fmt::format("{}: the first step {} is after the last step {}", shown(kKey), first, last));
  else if (max_steps() > 0 && first > max_steps())
    add_problem(kKey, fmt::format("{} begins after the end of the run: {}", shown(kKey), shown("run.max_steps")));
}

void CrossCheck::check_plugin_lists() {
  for (const TableSpec& table : config_.schema_->tables) {
    const std::string key = table.name + "." + table.list_key;
    if (table.slot != SlotForm::kList || !valid(key)) continue;
    std::set<std::string> seen;
    for (const std::string& name : get_list(key)) {
      if (!seen.emplace(without_version(name)).second)
        add_problem(key, fmt::format("{} names \"{}\" twice", key, name));
    }
    if (seen.empty() && table.kind == "ops")
      add_problem(key, fmt::format("{} is empty: no plugin would compute anything", key));
  }
}

}  // namespace chassis
