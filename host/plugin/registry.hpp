// The plugins of a run. A library is loaded when one of its members is first used; unused libraries are not loaded.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/config/option.hpp"
#include "host/plugin/instance.hpp"
#include "host/plugin/library.hpp"
#include "host/plugin/process_settings.hpp"
#include "host/plugin/search.hpp"
#include "host/plugin/services.hpp"

namespace chassis {

// All functions are [control]. A plugin that changes the settings of the process while it is loaded, created or started
// is refused by a plugin error that names it.
class PluginRegistry {
 public:
  // `services` must outlive the registry and its instances. Each pin of a missing plugin is a counted warning.
  PluginRegistry(PluginIndex index, LoadPolicy policy, ServiceProvider& services);

  const PluginIndex& index() const { return index_; }
  // Whether [plugins] pin or plugins.lock has a hash for this library.
  bool is_pinned(const PluginFile& file) const { return policy_.pin_of(file.manifest) != nullptr; }
  // Whether libraries without such a hash are refused.
  bool loads_only_pinned() const { return !policy_.only_pinned.empty(); }
  // Throws a plugin error if the member does not exist or its library is refused.
  std::shared_ptr<const PluginLibrary> library(std::string_view kind, std::string_view id);
  // The member's description of itself, one line; loads its library.
  std::string doc(std::string_view kind, std::string_view id);
  // The options of a member; loads its library.
  const std::vector<OptionSpec>& option_specs(std::string_view kind, std::string_view id);
  // `options` must be complete and valid, otherwise throws a config error. `origins` has the source of each option, for
  // messages; `opened_by` the members that wrap this one.
  std::unique_ptr<Instance> create(std::string_view kind, std::string_view id, Json options,
                                   std::map<std::string, std::string> origins = {},
                                   std::vector<std::string> opened_by = {});
  // The same with all options at their defaults. Throws a config error if an option has no default.
  std::unique_ptr<Instance> create_default(std::string_view kind, std::string_view id);
  // Prepares and activates an instance that create() has made.
  static void start(Instance& instance);
  // create_default(), then start().
  std::unique_ptr<Instance> open(std::string_view kind, std::string_view id);
  // An active instance for the members `opened_by`, which wrap it. `options` is empty, or a JSON object of the options
  // that differ from their defaults. Throws a config error if it is not, or if a member would wrap itself.
  std::unique_ptr<Instance> open_inner(std::string_view kind, std::string_view id, std::string_view options,
                                       std::vector<std::string> opened_by);

  MemberName model_for_architecture(std::string_view architecture) const {
    return index_.model_for_architecture(architecture);
  }

  // The settings of the process before any plugin was loaded.
  const ProcessSettings& settings_before_plugins() const { return settings_before_plugins_; }

  // Loaded libraries for plugins.lock: id, version, path, sha256, built and negotiated ABI, tier, torch, used members.
  Json lock() const;

 private:
  PluginIndex index_;
  LoadPolicy policy_;
  ServiceProvider& services_;
  ProcessSettings settings_before_plugins_ = read_process_settings();
  std::map<std::string, std::shared_ptr<const PluginLibrary>> libraries_;  // by path
  std::map<std::string, std::vector<OptionSpec>> specs_;                   // by "kind/id"
  std::map<std::string, std::vector<std::string>> used_;                   // path → "kind/id"
};

}  // namespace chassis
