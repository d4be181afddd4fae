// Who computes: the providers that the configuration names, and those that "auto" compares. How they are compared is in
// program/resolve.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/config/config.hpp"
#include "host/launch/world.hpp"
#include "host/program/compile.hpp"
#include "host/session/run_plugins.hpp"
#include "host/session/target.hpp"

namespace chassis {

// Members of kind ops that "auto" compares, loaded, by name. Each that it passes over is a counted warning; a table
// [kernels.NAME] of none of them becomes a problem of `config`.
std::vector<std::string> find_candidates(Config& config, PluginRegistry& registry, const Target& target);

struct RunProviders {
  std::vector<OpsProvider> attention;
  std::vector<OpsProvider> kernels;
  std::vector<std::unique_ptr<Instance>> instances;  // of both
};
// Those that [attention] and [kernels] name, in the user's order, with the candidates where "auto" stands.
RunProviders open_providers(const Settings& settings, RunPlugins& plugins, const std::vector<std::string>& candidates);

// Who computes which node of training: {"device": "cpu", "attention": {NODE: PROVIDER}, "kernels": {…}}.
Json chosen_providers(CompiledProgram& compiled);
// [all-ranks] Throws a config error that names the first node for which two ranks chose differently.
void agree_on_providers(World& world, CompiledProgram& compiled);
// What plugins.lock says: what was loaded, and those.
Json plugins_lock(const PluginRegistry& registry, CompiledProgram& compiled);

}  // namespace chassis
