// Steps in names of directories.
#include "host/checkpoint/step_name.hpp"

#include <charconv>
#include <cinttypes>
#include <cstdio>

#include "host/checkpoint/disk_box.hpp"

namespace chassis {
namespace {

constexpr std::string_view kStep = "step-";

bool is_digits(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }

}  // namespace

bool is_set_aside_name(std::string_view name) {
  for (const std::string_view suffix : {kDamagedSuffix, kReplacedSuffix}) {
    const size_t at = name.find(suffix);
    if (at == 0 || at == name.npos) continue;
    const std::string_view rest = name.substr(at + suffix.size());
    if (rest.empty() || (rest.front() == '-' && is_digits(rest.substr(1)))) return true;
  }
  return false;
}

std::string step_directory_name(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%06" PRId64, step);
  return name;
}

std::optional<int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with(kStep) || !is_digits(name.substr(kStep.size()))) return std::nullopt;
  int64_t step = 0;
  const bool fits = std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step).ec == std::errc();
  return fits ? std::optional(step) : std::nullopt;
}

std::string names_another_step(int64_t named, int64_t step) {
  return "its name says step " + std::to_string(named) + ", its " + kManifestName + " says step " +
         std::to_string(step);
}

}  // namespace chassis
