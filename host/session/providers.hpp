// The providers that the configuration names, and those that "auto" compares. compile/resolve compares them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/compile/compile.hpp"
#include "host/config/config.hpp"
#include "host/launch/world.hpp"
#include "host/session/run_plugins.hpp"
#include "host/session/target.hpp"

namespace chassis {

// The names of the members of kind ops that "auto" compares; loads them. Counts a warning for each member that "auto"
// passes over. A table [kernels.NAME] of any other member becomes a problem of `config`.
std::vector<std::string> find_candidates(Config& config, PluginRegistry& registry, const Target& target);

// Opens the providers that [attention] and [kernels] name, in the user's order; "auto" is replaced by the candidates.
// Fills `options` with them and with the positions of the keys. The instances must outlive what is compiled with the
// options.
std::vector<std::unique_ptr<Instance>> open_providers(const Settings& settings, RunPlugins& plugins,
                                                      const std::vector<std::string>& candidates,
                                                      ResolveOptions& options);

// The provider of each node of training: {"device": "cpu", "attention": {NODE: PROVIDER}, "kernels": {…}}.
Json chosen_providers(const CompiledProgram& compiled);
// [all-ranks] Throws a config error that names the first node for which two ranks chose differently.
void agree_on_providers(World& world, const CompiledProgram& compiled);
// The content of plugins.lock: the loaded plugins and the chosen providers.
Json plugins_lock(const PluginRegistry& registry, const CompiledProgram& compiled);

}  // namespace chassis
