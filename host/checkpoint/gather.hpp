// Gathers texts of all ranks on rank 0. Unlike World::exchange, it does not send every text to every rank.
#pragma once

#include <string>
#include <vector>

#include "host/launch/world.hpp"

namespace chassis {

// [all-ranks] Returns each rank's text, by rank, on rank 0, and nothing on the others. `what` must be unique among the
// calls in progress.
std::vector<std::string> gather_on_first(World& world, const std::string& what, const std::string& mine);

}  // namespace chassis
