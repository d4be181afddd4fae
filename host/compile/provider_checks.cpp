// Checks of function tables, patterns and idle providers.
#include "host/compile/provider_checks.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/graph/op_table.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr uint32_t kMaxPatterns = 4096, kMaxPatternBytes = 1024;

void count_if_idle(const OpsProvider& provider, const std::string& table, const ResolvedProgram& program) {
  if (provider.is_candidate) return;
  const Refusal* first = nullptr;
  for (const auto& unit : program.units)
    for (const Node& node : unit->nodes) {
      if (node.provider == &provider) return;
      for (const Refusal& refusal : node.refusals)
        if (!first && refusal.provider == provider.name) first = &refusal;
    }
  if (!first && !provider.by_user) return;
  counted_warning("providers that compute nothing: " + provider.name,
                  table + ": provider '" + provider.name + "' claims no node, so others compute all of them" +
                      (first ? "; it refuses " + first->pattern + ": " + first->reason
                             : "; no op that it is offered matches its patterns"));
}

}  // namespace

void check_provider(const OpsProvider& provider) {
  const chassis_ops_t& table = *provider.table;
  const std::string prefix = "provider '" + provider.name + "'";
  const std::pair<const char*, bool> required[] = {{"claim", table.claim != nullptr},
                                                   {"infer", table.infer != nullptr},
                                                   {"create_kernel", table.create_kernel != nullptr},
                                                   {"forward", table.forward != nullptr}};
  for (const auto& [name, there] : required)
    if (!there) throw plugin_error(prefix + ": its table has no function " + name);
  if (table.num_patterns == 0)
    throw plugin_error(prefix + " offers 0 patterns, so it would compute nothing")
        .hint(
            "list the ops that it computes, such as \"linear\" or \"add+rms_norm\", in `patterns` of its "
            "chassis_ops_t, and their number in `num_patterns`");
  if (table.num_patterns > kMaxPatterns || !table.patterns)
    throw plugin_error(prefix + " offers " + std::to_string(table.num_patterns) +
                       (table.patterns ? " patterns; the maximum is " + std::to_string(kMaxPatterns)
                                       : " patterns, but no list of them"));
  for (uint32_t i = 0; i < table.num_patterns; ++i) {
    if (!table.patterns[i].ptr) throw plugin_error(prefix + ": pattern " + std::to_string(i) + " is NULL");
    if (table.patterns[i].len > kMaxPatternBytes)
      throw plugin_error(prefix + ": pattern " + std::to_string(i) + " has " + std::to_string(table.patterns[i].len) +
                         " bytes; the maximum is " + std::to_string(kMaxPatternBytes));
    const std::string_view pattern = view_of(table.patterns[i]);
    for (size_t at = 0; at <= pattern.size();) {
      const size_t end = std::min(pattern.find('+', at), pattern.size());
      const std::string_view op = pattern.substr(at, end - at);
      if (!is_op_name(op))
        throw plugin_error(prefix + ": pattern '" + std::string(pattern) + "' names the op '" + std::string(op) +
                           "', which this host does not know")
            .hint("the ops are those of chassis/op.h; a plugin's own is named \"domain/name\"");
      at = end + 1;
    }
  }
}

void count_idle_providers(const ResolvedProgram& program, const ResolveOptions& options) {
  for (const OpsProvider& provider : options.attention) count_if_idle(provider, "[attention]", program);
  for (const OpsProvider& provider : options.kernels) count_if_idle(provider, "[kernels]", program);
}

}  // namespace chassis
