// The plugins of a run: found, loaded when first needed, and made into instances. Nothing is loaded that is not used.
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
#include "host/plugin/search.hpp"
#include "host/plugin/services.hpp"

namespace chassis {

// [control] All of it.
class PluginRegistry {
 public:
  // `services` must outlive it and its instances. Pins of plugins that are not there are a counted warning.
  PluginRegistry(PluginIndex index, LoadPolicy policy, ServiceProvider& services);

  const PluginIndex& index() const { return index_; }
  // Whether [plugins] pin or plugins.lock gives the hash of this library, and whether any other may be loaded.
  bool is_pinned(const PluginFile& file) const { return policy_.pins.contains(file.manifest.id); }
  bool loads_only_pinned() const { return !policy_.only_pinned.empty(); }
  // Throws a plugin error if there is no such member or its library is refused.
  std::shared_ptr<const PluginLibrary> library(std::string_view kind, std::string_view id);
  // What a member says of itself in one line; loads its library.
  std::string doc(std::string_view kind, std::string_view id);
  // The options that a member takes; loads its library.
  const std::vector<OptionSpec>& option_specs(std::string_view kind, std::string_view id);
  // `options` are checked and complete; `origins` tells where each comes from, `opened_by` who wraps it.
  std::unique_ptr<Instance> create(std::string_view kind, std::string_view id, Json options,
                                   std::map<std::string, std::string> origins = {},
                                   std::vector<std::string> opened_by = {});
  // The same with the defaults of all options. Throws a config error if one has none.
  std::unique_ptr<Instance> create_default(std::string_view kind, std::string_view id);
  // That, active.
  std::unique_ptr<Instance> open(std::string_view kind, std::string_view id);
  // An active instance for a member that wraps it: `options` is a JSON object of those that differ from their defaults,
  // or empty. Throws a config error if it is none, or if one of `opened_by` would be opened again.
  std::unique_ptr<Instance> open_inner(std::string_view kind, std::string_view id, std::string_view options,
                                       std::vector<std::string> opened_by);

  MemberName model_for_architecture(std::string_view architecture) const {
    return index_.model_for_architecture(architecture);
  }

  // What was loaded, for plugins.lock: id, version, path, sha256, ABI built and negotiated, tier, torch, members used.
  Json lock() const;

 private:
  PluginIndex index_;
  LoadPolicy policy_;
  ServiceProvider& services_;
  std::map<std::string, std::shared_ptr<const PluginLibrary>> libraries_;  // by path
  std::map<std::string, std::vector<OptionSpec>> specs_;                   // by "kind/id"
  std::map<std::string, std::vector<std::string>> used_;                   // path → "kind/id"
};

}  // namespace chassis
