// Errors about entries of the configuration.
#include "host/config/settings.hpp"

#include <utility>

namespace chassis {

Error config_error(const ConfigEntry& entry, std::string message) {
  return {ExitCode::kConfig, entry.where(), std::move(message)};
}

Error error_at(const ConfigEntry& entry, const Error& cause) {
  return Error(cause.code(), entry.where(), cause.message()).hint(cause.hint_text());
}

SourcePosition SettingEntry::where_of(std::string_view item) const {
  const auto found = items_.find(item);
  return found == items_.end() ? where() : found->second;
}

void SettingEntry::throw_not_set() const {
  if (findings_) throw Error(*findings_);
  throw internal_error("the configuration has no '" + key() + "'");
}

}  // namespace chassis
