// What `chassis plugins list` and `chassis plugins info` print.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/config/option.hpp"
#include "host/plugin/search.hpp"

namespace chassis {

// One line per member: kind, id, plugin and version, tier, path. Then what cannot be used, was ignored or shadowed,
// with the reasons. `refusal` says why a file would not be loaded; empty: it would. Loads nothing.
std::string plugin_list_text(const PluginIndex& index,
                             const std::function<std::string(const PluginFile&)>& refusal = {});

// The manifest of a file, its hash and what it needs. Loads nothing.
std::string plugin_info_text(const PluginFile& file);

// The option schema of one member, as an appendix to plugin_info_text.
std::string member_options_text(const MemberName& member, const std::string& doc,
                                const std::vector<OptionSpec>& options);

}  // namespace chassis
