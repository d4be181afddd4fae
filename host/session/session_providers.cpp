// The part of a session that decides who computes: providers that the configuration names, and those that "auto"
// compares. How these are compared is in program/resolve.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/suggest.hpp"
#include "host/plugin/status.hpp"
#include "host/program/providers.hpp"
#include "host/service/device.hpp"
#include "host/session/session.hpp"

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

}  // namespace

// The program's own file of a member that another one replaces; empty if none does.
std::string Session::hidden_by(const PluginFile& file, const std::string& id) {
  const PluginIndex& index = registry().index();
  for (const ShadowedMember& hidden : index.shadowed())
    if (hidden.name == MemberName{"ops", id} && index.is_of_program(hidden.path) && !index.is_of_program(file.path))
      return hidden.path;
  return "";
}

bool Session::may_run_on_cuda(const SessionOptions& options) const {
  if (options.as_on) return options.as_on->type == Device::Type::kCuda;
  const std::string& setting = config_.get_string("run.device");
  if (options.without_device) return options.as_configured && setting.starts_with("cuda");
  return setting != "cpu" && load_cuda().empty();
}

// Rationale: whoever may change the program's own folder may change the program. What lies in any other runs only if
// somebody names it.
bool Session::may_compete(const PluginFile& file, const SessionOptions& options) {
  if (file.manifest.oracle || !registry().index().is_of_program(file.path)) return false;
  if (registry().loads_only_pinned() && !registry().is_pinned(file)) return false;
  return file.manifest.cuda == 0 || may_run_on_cuda(options);
}

void Session::find_candidates(const SessionOptions& options) {
  const std::vector<PluginSlot> slots = config_.plugin_slots();
  std::set<std::string, std::less<>> named;  // in [kernels] plugins
  bool any_auto = false, auto_kernels = false;
  for (const PluginSlot& slot : slots) {
    if (slot.kind != "ops") continue;
    any_auto |= slot.plugin == kAuto;
    auto_kernels |= slot.plugin == kAuto && slot.table == "kernels";
    if (slot.table == "kernels") named.emplace(without_version(slot.plugin));
  }
  if (!any_auto) return;
  for (const std::string& id : registry().index().ids("ops")) {
    const PluginFile& file = *registry().index().find("ops", id);
    if (const std::string own = hidden_by(file, id); !own.empty())
      counted_warning(kPassedOver,
                      fmt::format("\"auto\" passes over '{}': {} lies in an earlier folder than {}; name it, "
                                  "or remove it",
                                  id, file.path, own));
    if (!may_compete(file, options)) continue;
    try {
      const std::vector<OptionSpec>& specs = registry().option_specs("ops", id);
      if (auto_kernels && !named.contains(id)) config_.check_plugin_options("kernels." + id, id, specs);
    } catch (const Error& error) {
      pass_over(file, error);
      continue;
    }
    candidates_.push_back(id);
  }
  if (!auto_kernels) return;
  const Json tables = config_.json("kernels");
  for (const auto& [name, table] : tables.items()) {
    if (!table.is_object() || named.contains(name) || std::ranges::count(candidates_, name) > 0) continue;
    const std::string near = nearest(name, candidates_);
    config_.add_problem(
        "kernels." + name,
        fmt::format("[kernels.{}]: kernels.plugins does not name '{}', and \"auto\" compares {}{}", name, name,
                    fmt::join(candidates_, ", "), near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near)));
  }
}

// Content that somebody asked for by its hash is not replaced by another's.
void Session::pass_over(const PluginFile& file, const Error& error) {
  if (error.code() == ExitCode::kInternal || registry().is_pinned(file)) throw;
  counted_warning(kPassedOver, fmt::format("\"auto\" passes over '{}': {}", file.manifest.id, error.what()));
}

void Session::add_provider(std::vector<OpsProvider>& providers, std::unique_ptr<Instance> instance, bool by_user) {
  providers.push_back(ops_provider(*instance));
  providers.back().by_user = by_user;
  providers_.push_back(std::move(instance));
}

void Session::add_candidates(std::vector<OpsProvider>& providers, bool attention,
                             const std::vector<std::string>& named) {
  const std::vector<std::string> kernels = config_.get_list("kernels.plugins");
  const bool auto_kernels = std::ranges::count(kernels, kAuto) > 0;
  for (const std::string& id : candidates_) {
    if (std::ranges::any_of(named, [&](const std::string& name) { return without_version(name) == id; })) continue;
    try {
      // [kernels.ID] holds its options, whatever it computes.
      auto instance = auto_kernels ? create("kernels." + id, "ops", id) : registry().open("ops", id);
      const OpsProvider provider = ops_provider(*instance);
      check_provider(provider);
      if (!competes_in(provider, attention)) continue;
      add_provider(providers, std::move(instance), false);
      providers.back().competes = true;
    } catch (const Error& error) {
      pass_over(*registry().index().find("ops", id), error);
    }
  }
}

void Session::choose_providers() {
  if (const std::string& id = config_.get_string("attention.plugin"); id == kAuto)
    add_candidates(resolve_.attention, true, {});
  else
    add_provider(resolve_.attention, create("attention", "ops", id), config_.set_by_user("attention.plugin"));
  const std::vector<std::string> named = config_.get_list("kernels.plugins");
  for (const std::string& id : named) {
    if (id == kAuto)
      add_candidates(resolve_.kernels, false, named);
    else
      add_provider(resolve_.kernels, create("kernels." + std::string(without_version(id)), "ops", id),
                   config_.set_by_user("kernels.plugins"));
  }
  resolve_.attention_where = config_.position("attention.plugin");
  resolve_.kernels_where = config_.position("kernels.plugins");
}

Json Session::chosen_providers() {
  Json attention = Json::object(), kernels = Json::object();
  for (const auto& unit : compiled_->resolved(Purpose::kTraining).units)
    for (const Node& node : unit->nodes)
      if (node.provider) (node.pattern == kAttention ? attention : kernels)[node.name] = node.provider->name;
  const bool cuda = device().type == Device::Type::kCuda;
  return {{"device", cuda ? "cuda" : "cpu"}, {"attention", std::move(attention)}, {"kernels", std::move(kernels)}};
}

void Session::agree_on_providers() { world_->expect_same("providers of nodes", dotted_text(chosen_providers())); }

Json Session::plugins_lock() {
  Json lock = registry().lock();
  lock["providers"] = chosen_providers();
  return lock;
}

}  // namespace chassis
