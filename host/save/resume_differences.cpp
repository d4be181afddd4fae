// Compares resolved.toml, plugins.lock and config.json of a checkpoint with the session.
#include "host/save/resume_differences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "host/base/file.hpp"
#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/resume_keys.hpp"
#include "host/config/toml_file.hpp"

namespace chassis {
namespace {

std::string json_text(const Json& value) { return printable(json_line(value)); }

SettingTexts values_of(const Json& table) {
  SettingTexts values;
  for (const auto& [key, value] : dotted_values(table))
    if (!value.is_null()) values[key] = json_line(value);  // null: an empty list or table
  return values;
}

struct SavedSettings {
  Json json;
  std::unique_ptr<const Settings> settings;  // without keys whose type has changed since, or whose choice is unknown
};

// The saved settings; nothing if there are none, or if they cannot be read.
std::optional<SavedSettings> saved_settings(const std::string& checkpoint) {
  const std::string path = checkpoint + "/resolved.toml";
  try {
    if (path_kind(path) == PathKind::kAbsent) return std::nullopt;
    const TomlValue tree = parse_toml(read_file(path, uint64_t{4} << 20), path);
    return SavedSettings{to_json(tree), read_settings(tree, path, nullptr)};
  } catch (const std::exception& cause) {
    counted_warning("settings of the checkpoint are unknown",
                    "the run cannot be compared with the one that was saved: " + std::string(cause.what()));
    return std::nullopt;
  }
}

// Another run.name in the same run directory means that the user forgot to change run.output_dir. A run that resumes
// from a checkpoint elsewhere may have another name.
void compare_settings(const Json& saved, const Config& config, bool in_own_directory, ResumeDifferences& out) {
  const Settings& settings = config.settings();
  SettingTexts before = values_of(saved), now = values_of(config.json());
  for (SettingTexts* values : {&before, &now})
    values->erase(settings.extends.key());  // its values were merged into the other keys
  std::map<std::string, std::pair<std::string, std::string>> differing;
  for (const auto& [key, value] : before) differing[key].first = value;
  for (const auto& [key, value] : now) differing[key].second = value;
  for (const auto& [key, values] : differing) {
    const auto& [was, is] = values;
    if (was == is) continue;
    const auto text = [](const std::string& value) { return value.empty() ? "not set" : printable(value); };
    if (key == settings.run.name.key() && in_own_directory) {
      const std::string directory = printable(*settings.run.output_dir);
      out.counted.push_back({key, fmt::format("was {}, is {}: {} holds run {}, and this run continues it; for a "
                                              "new experiment set another run.output_dir",
                                              text(was), text(is), directory, text(was))});
      continue;
    }
    auto& list = may_change_on_resume(key, before, now) ? out.expected : out.counted;
    list.push_back({printable(key), fmt::format("was {}, is {}", text(was), text(is))});
  }
}

std::map<std::string, std::pair<std::string, std::string>> plugins_of(const Json& lock) {
  std::map<std::string, std::pair<std::string, std::string>> plugins;  // by id: version, hash
  if (!lock.is_object() || !lock.contains("plugins") || !lock["plugins"].is_array()) return plugins;
  for (const Json& plugin : lock["plugins"]) {
    if (!plugin.is_object() || !plugin.contains("sha256")) continue;
    const std::string id = json_string_or(plugin, "id", "", "plugins");
    const std::string version = json_string_or(plugin, "version", "", "plugins");
    plugins[id] = {version, json_string_or(plugin, "sha256", "", "plugins")};
    if (!plugin.contains("libraries") || !plugin["libraries"].is_array()) continue;
    for (const Json& library : plugin["libraries"])  // that the plugin brings
      if (library.is_object())
        plugins[id + "/" + json_string_or(library, "name", "", "plugins")] = {
            version, json_string_or(library, "sha256", "", "plugins")};
  }
  return plugins;
}

// A plugin that only one side has is a difference of the settings, which are compared elsewhere.
void compare_plugins(const Json& saved, const Json& now, ResumeDifferences& out) {
  const auto text = [](const std::pair<std::string, std::string>& plugin) {
    return printable(plugin.first) + " sha256:" + printable(plugin.second.substr(0, 12));
  };
  const auto before = plugins_of(saved);
  for (const auto& [id, plugin] : plugins_of(now))
    if (const auto was = before.find(id); was != before.end() && was->second.second != plugin.second)
      out.counted.push_back({"plugin " + id, fmt::format("was {}, is {}", text(was->second), text(plugin))});
}

// Compares the providers of nodes. On another device they are expected to change.
void compare_providers(const Json& saved, const Json& now, const Settings& settings, ResumeDifferences& out) {
  if (!saved.is_object() || saved.empty()) return;
  const bool same_device = saved.value("device", Json()) == now["device"];
  const bool auto_attention = settings.attention.plugin == "auto";
  const bool auto_kernels = std::ranges::count(*settings.kernels.plugins, "auto") > 0;
  struct Chosen {
    const char* table;  // a table of plugins.lock
    const std::string& key;
    bool is_auto;
  };
  for (const auto& [table, key, is_auto] : {Chosen{"attention", settings.attention.plugin.key(), auto_attention},
                                            Chosen{"kernels", settings.kernels.plugins.key(), auto_kernels}}) {
    const bool is_listed =
        std::ranges::any_of(out.counted, [&key = key](const auto& listed) { return listed.key == key; });
    if ((is_listed && !is_auto) || !saved.contains(table) || !saved[table].is_object()) continue;
    std::map<std::string, std::pair<std::string, std::string>> of_nodes;  // was, is
    for (const auto& [node, provider] : saved[table].items()) of_nodes[node].first = json_text(provider);
    for (const auto& [node, provider] : now[table].items()) of_nodes[node].second = json_text(provider);
    std::map<std::string, std::string> nodes_of;  // by the text of the difference
    const auto text = [](const std::string& provider) { return provider.empty() ? "none" : provider; };
    for (const auto& [node, providers] : of_nodes) {
      const auto& [was, is] = providers;
      if (was == is) continue;
      std::string& nodes = nodes_of[fmt::format("was {}, is {}", text(was), text(is))];
      nodes += (nodes.empty() ? "" : ", ") + printable(node);
    }
    for (const auto& [difference, nodes] : nodes_of)
      (same_device ? out.counted : out.expected).push_back({"the provider of " + nodes, difference});
  }
}

void compare_lock(const Json& saved, const Json& now, const Settings& settings, ResumeDifferences& out) {
  compare_plugins(saved, now, out);
  if (saved.is_object()) compare_providers(saved.value("providers", Json()), now["providers"], settings, out);
}

int64_t int_or(const Json& object, const char* table, const char* key, int64_t fallback) {
  if (!object.is_object() || !object.contains(table) || !object[table].is_object()) return fallback;
  const auto found = object[table].find(key);
  return found != object[table].end() && found->is_number_integer() ? found->get<int64_t>() : fallback;
}

// `schedule` with the values that `saved` sets.
LearningRateSchedule saved_schedule(const Settings& saved, LearningRateSchedule schedule) {
  const auto take = [](auto& part, const auto& setting) {
    if (setting.is_set()) part = *setting;
  };
  take(schedule.curve, saved.schedule.name);
  take(schedule.peak, saved.optimizer.lr);
  take(schedule.warmup_steps, saved.schedule.warmup_steps);
  take(schedule.decay_steps, saved.schedule.decay_steps);
  take(schedule.min_ratio, saved.schedule.min_lr_ratio);
  return schedule;
}

// Reports that the learning rate follows another curve if the number of steps has changed.
void compare_schedule(const LearningRateSchedule& before, const LearningRateSchedule& now, int64_t step,
                      ResumeDifferences& out) {
  const bool is_constant = before.curve == Curve::kConstant && now.curve == Curve::kConstant;
  if (before.max_steps <= 0 || before.max_steps == now.max_steps || is_constant) return;
  const std::string was = fmt::format("{:.4g}", before.at(step + 1)), is = fmt::format("{:.4g}", now.at(step + 1));
  const bool had_ended = step >= before.max_steps;
  out.counted.push_back(
      {"learning rate",
       fmt::format("of step {} {}: the schedule \"{}\" {} at step {}, now ends at step {}", step + 1,
                   was == is ? fmt::format("stays {}, and then differs", is)
                             : fmt::format("would have been {}, is {}", was, is),
                   to_text(before.curve), had_ended ? "ended" : "would have ended", before.max_steps, now.max_steps)});
}

// Another number of ranks or micro-batches needs another schedule: that difference is expected.
void compare_pipeline(const Json& saved, const Json& now, ResumeDifferences& out) {
  if (!saved.is_object() || !now.is_object() || saved.value("sha256", Json()) == now["sha256"]) return;
  const auto sizes = [](const Json& of) {
    return fmt::format("{} ranks and {} micro-batches", json_text(of.value("ranks", Json())),
                       json_text(of.value("microbatches", Json())));
  };
  const auto hash = [](const Json& of) {
    return printable(json_string_or(of, "sha256", "", "pipeline").substr(0, 12));
  };
  const std::string was = sizes(saved), is = sizes(now);
  if (was != is) return out.expected.push_back({"pipeline schedule", fmt::format("was of {}, is of {}", was, is)});
  out.counted.push_back(
      {"pipeline schedule", fmt::format("was sha256:{}, is sha256:{}: the lists of what its {} compute "
                                        "are not those of the saved run",
                                        hash(saved), hash(now), is)});
}

}  // namespace

namespace {

// Keys of config.json that a head of scores changes. Its shape is compared with the files.
bool is_of_head(std::string_view key) {
  constexpr std::string_view kKeys[] = {"architectures", "num_labels",   "id2label",
                                        "label2id",      "problem_type", "pad_token_id"};
  return std::ranges::count(kKeys, key.substr(0, key.find('.'))) > 0;
}

}  // namespace

std::vector<ResumeDifference> model_differences(const std::string& weights, const Session& session) {
  const std::string path = weights + "/config.json";
  if (path_kind(path) != PathKind::kFile) return {};
  std::map<std::string, Json> saved;
  for (auto& [key, value] : dotted_values(parse_json(read_file(path, uint64_t{4} << 20), path)))
    saved[key] = std::move(value);
  std::vector<ResumeDifference> out;
  const bool has_head = num_scores(session.program()) > 0;
  for (const auto& [key, value] : dotted_values(parse_json(session.model().plugin().config(), "the model's config"))) {
    const auto was = saved.find(key);
    if (was == saved.end() || was->second == value || (has_head && is_of_head(key))) continue;
    out.push_back(
        {printable("model.config." + key), fmt::format("was {}, is {}", json_text(was->second), json_text(value))});
  }
  return out;
}

std::vector<ResumeDifference> settings_that_differ(const std::string& run, const std::string& table,
                                                   const Config& config) {
  const std::optional<SavedSettings> saved = saved_settings(run);
  if (!saved) return {};
  ResumeDifferences all;
  compare_settings(saved->json, config, false, all);
  std::vector<ResumeDifference> out;
  for (const auto* list : {&all.counted, &all.expected})
    for (const ResumeDifference& difference : *list)
      if (difference.key.starts_with(table + ".") && difference.key != config.settings().data.cache_dir.key())
        out.push_back(difference);
  return out;
}

void require_same_optimizer(const std::string& checkpoint, const Setting<std::string>& is) {
  const std::optional<SavedSettings> saved = saved_settings(checkpoint);
  if (!saved) return;
  const Setting<std::string>& was = saved->settings->optimizer.plugin;
  if (!was.is_set() || without_version(*was) == without_version(*is)) return;
  throw config_error(is, fmt::format("optimizer.plugin was {}, is \"{}\": it cannot use the states in {}",
                                     json_text(*was), *is, checkpoint))
      .hint(fmt::format("continue with {}; or start a new run from the weights: model.path = \"{}\" and another "
                        "run.output_dir",
                        json_text(*was), checkpoint));
}

Json to_json(const ResolvedLength& length) {
  return {{"max_steps", length.max_steps}, {"global_batch_size", length.global_batch_size}};
}

Json pipeline_record(const Pipeline& pipeline) {
  if (!pipeline.divides()) return nullptr;
  return {{"ranks", pipeline.stages().num_ranks()},
          {"microbatches", pipeline.schedule.num_microbatches},
          {"sha256", sha256_hex(pipeline.schedule_text())}};
}

ResumeDifferences resume_differences(const std::string& checkpoint, int64_t step, const ResolvedLength& now,
                                     const LearningRateSchedule& schedule, Session& session) {
  ResumeDifferences out;
  SourceDirectory directory(checkpoint);
  const CheckpointManifest manifest = CheckpointManifest::read(directory);
  const Settings& settings = session.settings();
  const std::optional<SavedSettings> saved = saved_settings(checkpoint);
  const bool in_own_directory = checkpoint.starts_with(*settings.run.output_dir + "/checkpoints/");
  if (saved) compare_settings(saved->json, session.config(), in_own_directory, out);
  if (manifest.about.is_object() && manifest.about.contains("plugins"))
    compare_lock(manifest.about["plugins"], plugins_lock(session.plugins().registry(), session.compiled()), settings,
                 out);
  if (manifest.state.is_object())
    compare_pipeline(manifest.state.value("pipeline", Json()), pipeline_record(session.ranks().plan.pipeline()), out);
  const bool saved_steps = saved && saved->settings->run.max_steps.is_set();
  LearningRateSchedule before = saved ? saved_schedule(*saved->settings, schedule) : schedule;
  before.max_steps =
      int_or(manifest.state, "length", "max_steps", saved_steps ? *saved->settings->run.max_steps : int64_t{0});
  compare_schedule(before, schedule, step, out);
  // Without the key, the number of ranks determines the number of rows.
  const int64_t rows = int_or(manifest.state, "length", "global_batch_size", now.global_batch_size);
  const bool is_listed = std::any_of(out.counted.begin(), out.counted.end(), [&](const ResumeDifference& difference) {
    return difference.key == settings.train.global_batch_size.key();
  });
  if (rows != now.global_batch_size && !is_listed)
    out.counted.push_back({"rows of a step", fmt::format("were {}, are {}", rows, now.global_batch_size)});
  // The config.json may have changed too. Changes of an inline [model.config] are already listed.
  for (const ResumeDifference& difference : model_differences(checkpoint, session))
    if (std::none_of(out.counted.begin(), out.counted.end(),
                     [&](auto& listed) { return listed.key == difference.key; }))
      out.counted.push_back(difference);
  const int ranks = manifest.mesh.world_size(), ranks_now = session.mesh().world_size();
  if (ranks != ranks_now) out.expected.push_back({"ranks", fmt::format("were {}, are {}", ranks, ranks_now)});
  return out;
}

void report(const ResumeDifferences& differences, const std::string& checkpoint, const Setting<bool>& strict) {
  if (strict && !differences.counted.empty()) {
    std::string list;
    for (const auto& [key, text] : differences.counted) list += "\n  " + key + " " + text;
    const std::string what =
        fmt::format("run.strict: {} settings differ from those of {}:{}", differences.counted.size(), checkpoint, list);
    throw config_error(strict, what).hint("restore them, or set run.strict = false to continue with the new ones");
  }
  std::string list;
  for (const auto& [key, text] : differences.expected) list += "\n  " + key + " " + text;
  if (!list.empty()) log::info("changed since the run was saved (allowed in a resumed run):{}", list);
  // All of them share one line of the summary at the end.
  for (size_t i = 0; i < differences.counted.size(); ++i) {
    const auto& [key, text] = differences.counted[i];
    const std::string what = fmt::format("differs from the run that was saved: {} {}", key, text);
    if (i > 0)
      log::warn("{}", what);
    else
      counted_warning("differs from the run that was saved", what, differences.counted.size());
  }
}

}  // namespace chassis
