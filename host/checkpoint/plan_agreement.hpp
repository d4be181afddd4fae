// Makes sure that all ranks write the same checkpoint, or none does.
#pragma once

#include <cstdint>
#include <string>

#include "host/checkpoint/save_plan.hpp"
#include "host/launch/world.hpp"

namespace chassis {

// [all-ranks] Compares the plans of all ranks. If they differ, all ranks throw a storage error that names the tensors
// that only some ranks have, such as an optimizer state that was created late, or on one rank only. Returns the bytes
// of the files of all ranks.
uint64_t agree_on_plan(const SavePlan& plan, const std::string& occasion, World& world);

}  // namespace chassis
