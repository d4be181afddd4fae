// Names of checkpoint directories.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace chassis {

// "step-000500"
std::string step_directory_name(int64_t step);
// The step of such a name, with any number of digits; nothing for other names.
std::optional<int64_t> step_of_name(std::string_view name);
// The text of the defect that a directory named as the step `named` holds a checkpoint of `step`.
std::string names_another_step(int64_t named, int64_t step);

// Suffixes of checkpoints that were set aside: damaged ones, and later steps of a run that resumed from an older one.
inline constexpr std::string_view kDamagedSuffix = ".damaged", kReplacedSuffix = ".replaced";

// True for a name with one of these suffixes: "step-000500.damaged", "step-000500.replaced-2".
bool is_set_aside_name(std::string_view name);

}  // namespace chassis
