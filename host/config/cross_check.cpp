// Keys that depend on each other: defaults derived from others, contradictions, keys without effect.
#include <fmt/core.h>
#include <limits.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/base/printable.hpp"
#include "host/config/config.hpp"
#include "host/config/eval_sets.hpp"
#include "host/config/paths.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/suggest.hpp"

namespace chassis {
namespace {

Value default_string(std::string text) {
  Value value;
  value.type = ValueType::kString;
  value.string = std::move(text);
  return value;
}

// Multiples of `unit` around `number`: "8", "8 or 16".
std::string multiples_near(int64_t number, int64_t unit) {
  const int64_t below = number / unit * unit;
  return below == 0 ? std::to_string(unit) : fmt::format("{} or {}", below, below + unit);
}

bool is_sha256(const std::string& text) {
  return text.size() == 71 && text.starts_with("sha256:") &&
         text.find_first_not_of("0123456789abcdefABCDEF", 7) == std::string::npos;
}

}  // namespace

BatchSizes batch_sizes(const Settings& settings, int64_t data_parallel_size) {
  CHASSIS_CHECK(data_parallel_size > 0, "there is at least one data-parallel rank");
  BatchSizes sizes;
  sizes.micro_batch_size = settings.train.micro_batch_size;
  const int64_t per_pass = sizes.micro_batch_size * data_parallel_size;
  const Setting<int64_t>& global_batch_size = settings.train.global_batch_size;
  sizes.global_batch_size = global_batch_size.is_set() ? *global_batch_size : per_pass;
  if (sizes.global_batch_size % per_pass != 0) {
    const std::string product = data_parallel_size == 1
                                    ? fmt::format("train.micro_batch_size = {}", sizes.micro_batch_size)
                                    : fmt::format("train.micro_batch_size × data-parallel ranks = {} × {} = {}",
                                                  sizes.micro_batch_size, data_parallel_size, per_pass);
    throw config_error(global_batch_size, fmt::format("train.global_batch_size = {} is not a multiple of {} (try {})",
                                                      sizes.global_batch_size, product,
                                                      multiples_near(sizes.global_batch_size, per_pass)));
  }
  sizes.num_microbatches = sizes.global_batch_size / per_pass;
  return sizes;
}

void Config::derive_defaults() {
  if (Value* run = find("run"); run != nullptr && !has("run.output_dir") && has("run.name")) {
    run->set("output_dir", default_string("out/" + get_string("run.name")));
  }
  if (Value* model = find("model"); model != nullptr && !has("model.init")) {
    if (has("model.path") || has("model.config")) {
      model->set("init", default_string(has("model.path") ? "pretrained" : "random"));
    }
  }
  if (has("adapter.plugin")) {
    const bool merges = find("export.merge") != nullptr && find("export.merge")->boolean;
    const bool has_base = has("model.init") && get_string("model.init") == "pretrained";
    if (!set_by_user("checkpoint.contents") && has_base) find("checkpoint")->set("contents", default_string("trained"));
    if (!set_by_user("export.plugin") && !merges) find("export")->set("plugin", default_string("peft"));
  }
  for (size_t i = 0; i < count("data.eval"); ++i) {
    const std::string key = fmt::format("data.eval.{}", i);
    if (has(key + ".name") || !has(key + ".path")) continue;
    const std::string stem = std::filesystem::path(get_string(key + ".path")).stem().string();
    find(key)->set("name", default_string(count("data.eval") == 1 ? "eval" : stem));
  }
}

void Config::cross_check() {
  // A key without effect is a problem only if it differs from its default: a resolved configuration sets every key.
  const auto valid = [&](const std::string& key) { return has(key) && !invalid_.contains(key); };
  const auto both = [&](const std::string& a, const std::string& b) { return valid(a) && valid(b); };
  const auto is = [&](const std::string& key, std::string_view text) { return valid(key) && get_string(key) == text; };
  // True also for a path that cannot be examined, which is reported as a problem here.
  const auto exists = [&](const std::string& key) {
    try {
      return path_kind(get_string(key)) != PathKind::kAbsent;
    } catch (const Error& cause) {
      add_problem(key, config_error(fmt::format("{}: {}", key, cause.message())));
      return true;
    }
  };
  const auto shown = [&](const std::string& key) { return fmt::format("{} = {}", key, toml_text(*find(key))); };

  if (valid("schema_version") && get_int("schema_version") != kSchemaVersion) {
    add_problem("schema_version", fmt::format("schema_version {} is unknown: this program understands version {}",
                                              get_int("schema_version"), kSchemaVersion));
  }
  for (const Unavailable& entry : unavailable()) {
    const std::string key(entry.key);
    if (!entry.value.empty() ? !is(key, entry.value) : !valid(key) || !set_by_user(key)) continue;
    const Value& value = *find(key);
    if (value.is_array() && value.children.empty()) continue;  // a default, written out
    const std::string what = !entry.value.empty() ? shown(key) : value.is_table() ? "[" + key + "]" : key;
    add_problem(key, fmt::format("{} is not available in this version: {}", what, entry.instead));
  }

  // run
  if (both("run.max_steps", "run.epochs")) {
    const bool steps = get_int("run.max_steps") > 0, epochs = get_double("run.epochs") > 0;
    if (!steps && !epochs && is_needed("run.max_steps", use_))
      add_problem("run", "the run has no length: set run.max_steps or run.epochs");
    if (steps && epochs) {
      add_problem("run.epochs", fmt::format("{} and {} both say how long the run is (set one of them to 0)",
                                            shown("run.max_steps"), shown("run.epochs")));
    }
  }
  for (const PluginSlot& slot : plugin_slots()) {
    const std::string one = slot.key + ".plugin", list = slot.table + ".plugins", key = has(one) ? one : list;
    const bool may_be_none = slot.table == "tokenizer";
    if (slot.plugin.empty() && has(key) && !may_be_none)
      add_problem(key, fmt::format("{} names no plugin", shown(key)));
  }
  if (valid("run.name")) {
    const std::string& name = get_string("run.name");
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
      add_problem("run.name",
                  fmt::format("{} is not a valid folder name; run.output_dir is out/<run.name> unless it is set",
                              shown("run.name")));
    if (name.size() > NAME_MAX)
      add_problem("run.name", fmt::format("run.name: {} is too long: at most {} bytes are allowed, since "
                                          "run.output_dir is out/<run.name> unless it is set",
                                          printable(name, 40), NAME_MAX));
  }
  if (use_ == ConfigUse::kTraining && valid("run.resume") && !is("run.resume", "auto") && !is("run.resume", "never") &&
      !exists("run.resume")) {
    const std::string near = nearest(get_string("run.resume"), {"auto", "never"});
    add_problem("run.resume",
                fmt::format("{} is neither \"auto\" nor \"never\" nor an existing checkpoint{}", shown("run.resume"),
                            near.empty() ? "" : " (did you mean \"" + near + "\"?)"));
  }
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
  if (Value* pins = find("plugins.pin"); pins != nullptr && pins->is_table()) {
    for (const Value& pin : pins->children) {
      if (pin.type == ValueType::kString && is_sha256(pin.string)) continue;
      problems_.push_back(
          {pin.origin.where, fmt::format("plugins.pin.{} = {} is not a pin: expected \"sha256:\" and 64 hex digits",
                                         toml_key(pin.name), toml_text(pin))});
    }
  }

  if (is("precision.reduce", "bf16") && count("parallel") == 0) {
    add_problem("precision.reduce",
                fmt::format("{} has no effect: without [[parallel]] no gradient is sent", shown("precision.reduce")));
  }

  // model
  const bool path = has("model.path"), described = has("model.config");
  const bool model_invalid = invalid_.contains("model.path") || invalid_.contains("model.config");
  if (!path && !described && !model_invalid) {
    add_problem("model", "the model is missing: set model.path, or model.plugin and model.config");
  } else if (path && described) {
    add_problem("model.config",
                fmt::format("{} and model.config both say what the model is (remove one)", shown("model.path")));
  } else if (described && !has("model.plugin") && !invalid_.contains("model.plugin")) {
    add_problem("model.config", "model.config needs model.plugin (chassis plugins list shows the models)");
  } else if (described && is("model.init", "pretrained")) {
    add_problem("model.init", "model.init = \"pretrained\" needs model.path: model.config has no weights");
  }
  if (both("freeze.patterns", "freeze.train_only") && !get_list("freeze.patterns").empty() &&
      !get_list("freeze.train_only").empty()) {
    add_problem("freeze.train_only", "freeze.patterns and freeze.train_only contradict each other (use one of them)");
  }

  // adapter
  const bool adapts = has("adapter.plugin"), merges = valid("export.merge") && find("export.merge")->boolean;
  if (merges && !adapts && !invalid_.contains("adapter.plugin"))
    add_problem("export.merge", "export.merge = true merges an adapter, and there is no [adapter]");
  if (merges && is("export.plugin", "peft"))
    add_problem("export.plugin",
                "export.plugin = \"peft\" writes an adapter alone, and export.merge = true the whole "
                "model (remove one)");
  if (adapts && !merges && !is("export.plugin", "peft") && valid("export.plugin") && !is("export.when", "never"))
    add_problem("export.plugin",
                config_error(fmt::format("{} writes whole models, and [adapter] trains a small part of one",
                                         shown("export.plugin")))
                    .hint("export.merge = true writes the merged model; export.plugin = \"peft\", the default, writes "
                          "the adapter alone"));

  // quant
  const bool quantizes = has("quant.plugin") && !invalid_.contains("quant.plugin");
  if (quantizes && !adapts && use_ == ConfigUse::kTraining)
    add_problem("quant.plugin", config_error("[quant] needs an [adapter]: quantized parameters cannot be trained")
                                    .hint("add [adapter] with plugin = \"lora\", or remove [quant]"));

  // data
  const bool has_eval_part =
      valid("data.eval_fraction") && get_double("data.eval_fraction") > 0 && count("data.train") > 0;
  for (const auto& [sets, what] : {std::pair("data.train", "training data"), {"data.eval", "evaluation data"}}) {
    if (count(sets) > 0 || !is_needed(sets, use_)) continue;
    if (sets == std::string_view("data.eval") && has_eval_part) continue;
    const bool empty = find(sets) != nullptr;
    const std::string why =
        empty ? fmt::format("{} is empty", sets)
              : fmt::format("add [[{}]] with a path, or {}.0.path=FILE on the command line", sets, sets);
    add_problem(empty ? sets : "data", fmt::format("there is no {}: {}", what, why));
  }
  // Weights are useful only with the tokenizer that they were trained with.
  const std::string which_tokenizer =
      has("model.path")
          ? "set tokenizer.plugin to the model's own, or tokenise the text with that and set format = \"tokens\""
          : "set tokenizer.plugin; `chassis plugins list` shows the tokenizers";
  // Only the session knows which plugin opens the files of a directory. A model with a problem of its own may have a
  // tokenizer.
  std::error_code ignored;
  const bool may_be_found = has("tokenizer.path") || invalid_.contains("tokenizer.path") ||
                            invalid_.contains("model.path") || invalid_.contains("model.plugin") ||
                            (has("model.path") && std::filesystem::is_directory(get_string("model.path"), ignored));
  const bool without_tokenizer =
      has("tokenizer.plugin") ? is("tokenizer.plugin", "") : !may_be_found && !invalid_.contains("tokenizer.plugin");
  if (is_needed("tokenizer.plugin", use_) && without_tokenizer)
    add_problem("tokenizer",
                config_error("there is no tokenizer for the prompt")
                    .hint(has("model.path") ? "set tokenizer.plugin to the model's own" : which_tokenizer));
  size_t num_weights = 0;
  std::set<std::string> eval_names;
  for (const std::string sets : {"data.train", "data.eval"}) {
    for (size_t i = 0; i < count(sets); ++i) {
      const std::string key = fmt::format("{}.{}", sets, i);
      if (valid(key + ".format") && !is(key + ".format", "tokens") && without_tokenizer) {
        add_problem(key,
                    config_error(fmt::format("{} is {}, which needs a tokenizer", key, get_string(key + ".format")))
                        .hint(which_tokenizer));
      }
      if (has(key + ".weight")) {
        ++num_weights;
        if (get_double(key + ".weight") == 0) {
          add_problem(key + ".weight", fmt::format("{}.weight = 0.0: the set would never be used (remove it)", key));
        }
      }
      if (has(key + ".name") && !eval_names.insert(get_string(key + ".name")).second) {
        add_problem(
            key, fmt::format("two evaluation sets are called \"{}\": give {} a name", get_string(key + ".name"), key));
      }
      if (has(key + ".documents") && !is(key + ".documents", "line")) {
        if (valid(key + ".format") && !is(key + ".format", "text"))
          add_problem(key + ".documents",
                      fmt::format("{}.documents has no effect with {}", key, shown(key + ".format")));
        else if (has(key + ".path") && get_string(key + ".path").ends_with(".jsonl"))
          add_problem(key + ".documents", fmt::format("{}.documents has no effect on a .jsonl file, in which every "
                                                      "line is a document",
                                                      key));
      }
    }
  }
  if (num_weights > 0 && num_weights < count("data.train")) {
    add_problem("data.train", fmt::format("{} of {} training sets have a weight: give one to all of them or to none",
                                          num_weights, count("data.train")));
  }
  check_data_task();
  for (const char* key : {"eval.every_steps", "eval.max_batches"}) {
    if (set_by_user(key) && valid(key) && get_int(key) > 0 && count("data.eval") == 0 && !has_eval_part) {
      add_problem(key, fmt::format("{}, but there is no [[data.eval]], and data.eval_fraction is 0", shown(key)));
    }
  }
  const bool keeps_best = valid("eval.keep_best") && !is("eval.keep_best", "");
  if (keeps_best) {
    const std::vector<std::string> names = eval_set_names(settings().data);
    if (std::ranges::count(names, get_string("eval.keep_best")) == 0) {
      std::string known;
      for (const std::string& name : names) known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", name);
      add_problem("eval.keep_best", fmt::format("{} is not an evaluation set: {}", shown("eval.keep_best"),
                                                known.empty() ? "there is none; add [[data.eval]], or set "
                                                                "data.eval_fraction"
                                                              : "there are " + known));
    } else if (valid("eval.every_steps") && get_int("eval.every_steps") == 0) {
      add_problem("eval.keep_best",
                  fmt::format("{} needs eval.every_steps: without it, only the last step is evaluated",
                              shown("eval.keep_best")));
    }
  }
  if (!keeps_best && valid("eval.patience") && get_int("eval.patience") > 0 && !invalid_.contains("eval.keep_best")) {
    add_problem("eval.patience",
                fmt::format("{} needs eval.keep_best, the name of an evaluation set", shown("eval.patience")));
  }

  if (set_by_user("train.max_skipped_steps") && valid("train.max_skipped_steps") && is("train.nonfinite", "stop") &&
      toml_text(*find("train.max_skipped_steps")) != schema_->find("train")->find("max_skipped_steps")->default_json) {
    add_problem("train.max_skipped_steps", fmt::format("{} has no effect with {} (it belongs to \"skip\")",
                                                       shown("train.max_skipped_steps"), shown("train.nonfinite")));
  }

  // batches and mesh
  int64_t data_parallel_size = 1, num_rests = 0;
  const std::string replicas = mesh_key(kReplicaAxis), shards = mesh_key(kShardAxis);
  for (const std::string& key : {replicas, shards}) {
    if (!valid(key)) continue;
    if (get_int(key) == 0)
      add_problem(key, fmt::format("{} = 0 is out of range: must be at least 1, or -1 for the rest", key));
    if (get_int(key) > 0) data_parallel_size *= get_int(key);
    if (get_int(key) == -1) ++num_rests;
  }
  if (num_rests == 2) {
    add_problem(replicas, fmt::format("{0} and {1} are both -1: only one can be the rest ({1} is -1 by default)",
                                      replicas, shards));
  }
  if (both("train.micro_batch_size", "train.global_batch_size")) {
    try {
      batch_sizes(settings(), data_parallel_size);
    } catch (const Error& e) {
      add_problem("train.global_batch_size", e.message());
    }
  }

  if (valid("recompute.blocks") && (is("recompute.mode", "auto") || is("recompute.mode", "none"))) {
    add_problem("recompute.blocks",
                fmt::format("{} has no effect with {} ({})", shown("recompute.blocks"), shown("recompute.mode"),
                            is("recompute.mode", "auto") ? "which takes the fewest that fit"
                                                         : "it belongs to \"selective\" and \"full\""));
  }

  // schedule
  const std::string schedule = valid("schedule.name") ? get_string("schedule.name") : "";
  const int64_t max_steps = valid("run.max_steps") ? get_int("run.max_steps") : 0;
  const int64_t warmup = valid("schedule.warmup_steps") ? get_int("schedule.warmup_steps") : 0;
  const int64_t decay = valid("schedule.decay_steps") ? get_int("schedule.decay_steps") : 0;
  if (schedule == "wsd" && decay == 0 && valid("schedule.decay_steps")) {
    add_problem("schedule.name", "schedule.name = \"wsd\" needs schedule.decay_steps");
  }
  if (!schedule.empty() && schedule != "wsd" && set_by_user("schedule.decay_steps") && decay > 0) {
    add_problem("schedule.decay_steps", fmt::format("{} has no effect with {} (it belongs to \"wsd\")",
                                                    shown("schedule.decay_steps"), shown("schedule.name")));
  }
  if (schedule == "constant" && set_by_user("schedule.min_lr_ratio") && valid("schedule.min_lr_ratio") &&
      get_double("schedule.min_lr_ratio") > 0) {
    add_problem("schedule.min_lr_ratio",
                fmt::format("{} has no effect with schedule.name = \"constant\" (try \"cosine\")",
                            shown("schedule.min_lr_ratio")));
  }
  if (max_steps > 0 && warmup > max_steps) {
    add_problem("schedule.warmup_steps",
                fmt::format("{} is longer than the run: {}", shown("schedule.warmup_steps"), shown("run.max_steps")));
  } else if (max_steps > 0 && schedule == "wsd" && warmup + decay > max_steps) {
    add_problem("schedule.decay_steps",
                fmt::format("schedule.warmup_steps + schedule.decay_steps = {} + {} = {} is longer than the run: {}",
                            warmup, decay, warmup + decay, shown("run.max_steps")));
  }

  // export and generation
  if (valid("export.dtype") && !is("export.dtype", "auto") && is("export.when", "never")) {
    add_problem("export.dtype", fmt::format("{} has no effect with {} (`chassis ckpt export` takes --dtype)",
                                            shown("export.dtype"), shown("export.when")));
  }
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

  // log
  if (valid("log.trace") && count("log.trace") > 0) {
    const std::vector<Value>& steps = find("log.trace")->children;
    if (steps.size() != 2)
      add_problem("log.trace",
                  fmt::format("{} has {} number{}: expected [first, last], the steps to trace, such as [{}, {}], or []",
                              shown("log.trace"), steps.size(), steps.size() == 1 ? "" : "s", steps[0].integer,
                              std::max(steps[0].integer, steps.back().integer)));
    else if (steps[0].integer > steps[1].integer)
      add_problem("log.trace", fmt::format("{}: the first step {} is after the last step {}", shown("log.trace"),
                                           steps[0].integer, steps[1].integer));
    else if (max_steps > 0 && steps[0].integer > max_steps)
      add_problem("log.trace",
                  fmt::format("{} begins after the end of the run: {}", shown("log.trace"), shown("run.max_steps")));
  }

  // lists of plugins
  for (const TableSpec& table : schema_->tables) {
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
