// All ranks are about to write the same checkpoint, or none does.
#pragma once

#include <string>

#include "host/checkpoint/save_plan.hpp"
#include "host/launch/world.hpp"

namespace chassis {

// [all-ranks] Compares the plans of all ranks. If they differ all throw a storage error that names the tensors which
// some ranks have and others do not: an optimizer state that was made on one rank only, or late.
void agree_on_plan(const SavePlan& plan, const std::string& occasion, World& world);

}  // namespace chassis
