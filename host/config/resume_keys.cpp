// The list of keys that a resumed run may change.
#include "host/config/resume_keys.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace chassis {
namespace {

// Keys, and prefixes of keys, which end in a dot.
constexpr std::string_view kMayChange[] = {"run.name",
                                           "run.output_dir",
                                           "run.max_steps",
                                           "run.epochs",
                                           "run.resume",
                                           "run.strict",
                                           "run.memory_check",
                                           "run.device",
                                           "run.threads",
                                           "schema_version",
                                           "plugins.",
                                           "model.path",
                                           "model.init",
                                           "data.cache_dir",
                                           "data.prefetch",
                                           "data.eval.",
                                           "eval.",
                                           "generate.",
                                           "log.",
                                           "checkpoint.",
                                           "export.",
                                           "comm.",
                                           "mesh.",
                                           "recompute.",
                                           "swap.",
                                           "run.replica_check_steps"};
constexpr std::string_view kStrategies = "parallel.";

std::string_view text_of(const SettingTexts& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? std::string_view() : found->second;
}

// Returns "fsdp2" for "\"fsdp2@1.2.0\"".
std::string_view plugin_in(std::string_view text) {
  if (text.starts_with('"')) text.remove_prefix(1);
  return text.substr(0, text.find_first_of("@\""));
}

// A run may resume with other strategies, and their options change with them. Options of a strategy that stays may
// change the results, as dtypes always do.
bool strategy_may_change(const std::string& key, const SettingTexts& saved, const SettingTexts& now) {
  const size_t dot = key.find('.', kStrategies.size());
  const std::string_view option = dot == std::string::npos ? "" : std::string_view(key).substr(dot + 1);
  if (option == "plugin" || option.empty()) return true;
  const auto is_default = [](std::string_view text) { return text.empty() || text == "\"auto\""; };
  if (option.ends_with("dtype") && !(is_default(text_of(saved, key)) && is_default(text_of(now, key)))) return false;
  const std::string plugin = key.substr(0, dot) + ".plugin";
  return plugin_in(text_of(saved, plugin)) != plugin_in(text_of(now, plugin));
}

}  // namespace

bool may_change_on_resume(const std::string& key, const SettingTexts& saved, const SettingTexts& now) {
  if (key.starts_with(kStrategies)) return strategy_may_change(key, saved, now);
  // The path of data; its content is compared by hash.
  if (key.starts_with("data.train.") && key.ends_with(".path")) return true;
  if (key == "data.pad_to_seq_len") return true;  // changes only how sums are rounded
  return std::any_of(std::begin(kMayChange), std::end(kMayChange), [&](std::string_view known) {
    return known.ends_with('.') ? key.starts_with(known) : key == known;
  });
}

}  // namespace chassis
