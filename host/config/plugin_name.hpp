// The name of a plugin in a configuration: "sdpa", or "sdpa@1.2.0" for one version of it.
#pragma once

#include <string_view>

namespace chassis {

constexpr std::string_view without_version(std::string_view name) { return name.substr(0, name.find('@')); }
// Empty if the name has none: any version will do.
constexpr std::string_view version_in(std::string_view name) {
  const size_t at = name.find('@');
  return at == std::string_view::npos ? std::string_view() : name.substr(at + 1);
}

}  // namespace chassis
