// The output of `chassis plugins list` and `chassis plugins info`. Loads no library.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/config/option.hpp"
#include "host/plugin/search.hpp"

namespace chassis {

struct ListedMember {
  MemberName name;
  std::string plugin, version, tier, path;
  std::string unusable;  // why; empty if it can be used
};
// The members in use, sorted by kind and id. `refusal` returns why a file would be refused, or an empty text.
std::vector<ListedMember> listed_members(const PluginIndex& index,
                                         const std::function<std::string(const PluginFile&)>& refusal = {});
// One line per member: kind, id, plugin and version, tier, path. Then unusable and shadowed members and ignored files,
// with the reasons.
std::string plugin_list_text(const PluginIndex& index, const std::vector<ListedMember>& members);
Json plugin_list_json(const PluginIndex& index, const std::vector<ListedMember>& members);

// The manifest of a file, its hash and its requirements.
std::string plugin_info_text(const PluginFile& file);
Json plugin_info_json(const PluginFile& file);

// The option schema of one member, printed after plugin_info_text.
std::string member_options_text(const MemberName& member, const std::string& doc,
                                const std::vector<OptionSpec>& options);
Json member_options_json(const MemberName& member, const std::string& doc, const std::vector<OptionSpec>& options);

}  // namespace chassis
