// Opens the providers of [attention] and [kernels], and the candidates of "auto".
#include "host/session/providers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/compile/provider_checks.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/suggest.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr std::string_view kAuto = "auto", kAttention = "attention";
constexpr const char* kPassedOver = "providers that \"auto\" passes over";

// Providers of attention compete in [attention], all others in [kernels].
bool competes_in(const OpsProvider& provider, bool attention) {
  const auto begins_with_attention = [](const chassis_str_t& pattern) {
    return view_of(pattern) == kAttention || view_of(pattern).starts_with("attention+");
  };
  const std::span patterns(provider.table->patterns, provider.table->num_patterns);
  const auto of_attention = std::count_if(patterns.begin(), patterns.end(), begins_with_attention);
  return attention ? of_attention > 0 : of_attention < std::ssize(patterns);
}

// The path of the program's own file of member `id`, if `file` from another folder hides it; else empty.
std::string hidden_by(const PluginIndex& index, const PluginFile& file, const std::string& id) {
  for (const ShadowedMember& hidden : index.shadowed())
    if (hidden.name == MemberName{"ops", id} && index.is_installed_with_program(hidden.path) &&
        !index.is_installed_with_program(file.path))
      return hidden.path;
  return "";
}

// Rationale: anyone who can change the program's own folder can change the program. A plugin in another folder runs
// only if the user names it.
bool may_compete(const Settings::Run& run, const PluginRegistry& registry, const PluginFile& file,
                 const Target& target) {
  if (file.manifest.oracle || !registry.index().is_installed_with_program(file.path)) return false;
  if (registry.loads_only_pinned() && !registry.is_pinned(file)) return false;
  if (!file.manifest.has_device_code()) return true;
  return std::ranges::any_of(device_specs(), [&](const DeviceSpec& device) {
    return file.manifest.code_for(device) && may_run_on(device, run, target);
  });
}

// Called in a catch block. Rethrows the error of a pinned plugin: the user asked for exactly that file.
void warn_skipped_provider(const PluginRegistry& registry, const PluginFile& file, const Error& error) {
  if (error.code() == ExitCode::kInternal || registry.is_pinned(file)) throw;
  counted_warning(kPassedOver, fmt::format("\"auto\" passes over '{}': {}", file.manifest.id, error.what()));
}

struct ChosenProviders {
  ResolveOptions& options;
  std::vector<std::unique_ptr<Instance>> instances = {};
};

OpsProvider& add_provider(ChosenProviders& chosen, bool attention, std::unique_ptr<Instance> instance) {
  auto& providers = attention ? chosen.options.attention : chosen.options.kernels;
  providers.push_back(ops_provider(*instance));
  chosen.instances.push_back(std::move(instance));
  return providers.back();
}

// The plugins in `named` stand in the same list as "auto" and do not compete.
void add_candidates(ChosenProviders& chosen, bool attention, const Settings::Kernels& kernels, RunPlugins& plugins,
                    const std::vector<std::string>& candidates, const std::vector<std::string>& named) {
  const bool auto_kernels = std::ranges::count(*kernels.plugins, kAuto) > 0;
  for (const std::string& id : candidates) {
    if (std::ranges::any_of(named, [&](const std::string& name) { return without_version(name) == id; })) continue;
    try {
      // [kernels.ID] holds the options of ID, also for attention.
      auto instance =
          auto_kernels ? plugins.create(kernels.slot_of(id), "ops", id) : plugins.registry().open("ops", id);
      const OpsProvider provider = ops_provider(*instance);
      check_provider(provider);
      if (!competes_in(provider, attention)) continue;
      add_provider(chosen, attention, std::move(instance)).is_candidate = true;
    } catch (const Error& error) {
      warn_skipped_provider(plugins.registry(), *plugins.registry().index().find("ops", id), error);
    }
  }
}

}  // namespace

std::vector<std::string> find_candidates(Config& config, PluginRegistry& registry, const Target& target) {
  std::vector<std::string> candidates;
  const Settings& settings = config.settings();
  const Settings::Kernels& kernels = settings.kernels;
  const std::vector<PluginSlot> slots = config.plugin_slots();
  std::set<std::string, std::less<>> named;  // in [kernels] plugins
  bool any_auto = false, auto_kernels = false;
  for (const PluginSlot& slot : slots) {
    if (slot.kind != "ops") continue;
    any_auto |= slot.plugin == kAuto;
    auto_kernels |= slot.plugin == kAuto && slot.table == kernels.key();
    if (slot.table == kernels.key()) named.emplace(without_version(slot.plugin));
  }
  if (!any_auto) return candidates;
  for (const std::string& id : registry.index().ids("ops")) {
    const PluginFile& file = *registry.index().find("ops", id);
    if (const std::string own = hidden_by(registry.index(), file, id); !own.empty())
      counted_warning(kPassedOver,
                      fmt::format("\"auto\" passes over '{}': {} lies in an earlier folder than {}; name it, "
                                  "or remove it",
                                  id, file.path, own));
    if (!may_compete(settings.run, registry, file, target)) continue;
    try {
      const std::vector<OptionSpec>& specs = registry.option_specs("ops", id);
      if (auto_kernels && !named.contains(id)) config.check_plugin_options(kernels.slot_of(id), id, specs);
    } catch (const Error& error) {
      warn_skipped_provider(registry, file, error);
      continue;
    }
    candidates.push_back(id);
  }
  if (!auto_kernels) return candidates;
  for (const std::string& name : config.option_tables(kernels.key())) {
    if (named.contains(name) || std::ranges::count(candidates, name) > 0) continue;
    const std::string near = nearest(name, candidates);
    config.add_problem(
        kernels.slot_of(name),
        fmt::format("[kernels.{}]: kernels.plugins does not name '{}', and \"auto\" compares {}{}", name, name,
                    fmt::join(candidates, ", "), near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near)));
  }
  return candidates;
}

std::vector<std::unique_ptr<Instance>> open_providers(const Settings& settings, RunPlugins& plugins,
                                                      const std::vector<std::string>& candidates,
                                                      ResolveOptions& options) {
  ChosenProviders chosen{options};
  const PluginTable& attention = settings.attention;
  const Settings::Kernels& kernels = settings.kernels;
  options.attention_where = attention.plugin.where();
  options.kernels_where = kernels.plugins.where();
  if (attention.plugin == kAuto)
    add_candidates(chosen, true, kernels, plugins, candidates, {});
  else
    add_provider(chosen, true, plugins.create(attention.key(), "ops", attention.plugin)).by_user =
        attention.plugin.by_user();
  for (const std::string& id : *kernels.plugins) {
    if (id == kAuto) {
      add_candidates(chosen, false, kernels, plugins, candidates, kernels.plugins);
      continue;
    }
    const std::string slot = kernels.slot_of(without_version(id));
    add_provider(chosen, false, plugins.create(slot, "ops", id)).by_user = kernels.plugins.by_user();
  }
  return std::move(chosen.instances);
}

Json chosen_providers(const CompiledProgram& compiled) {
  Json attention = Json::object(), kernels = Json::object();
  for (const auto& unit : compiled.resolved(Purpose::kTraining).units)
    for (const Node& node : unit->nodes)
      if (node.provider) (node.pattern == kAttention ? attention : kernels)[node.name] = node.provider->name;
  return {{"device", compiled.options().device.spec().name},
          {"attention", std::move(attention)},
          {"kernels", std::move(kernels)}};
}

void agree_on_providers(World& world, const CompiledProgram& compiled) {
  world.expect_same("providers of nodes", dotted_text(chosen_providers(compiled)));
}

Json plugins_lock(const PluginRegistry& registry, const CompiledProgram& compiled) {
  Json lock = registry.lock();
  lock["providers"] = chosen_providers(compiled);
  return lock;
}

}  // namespace chassis
