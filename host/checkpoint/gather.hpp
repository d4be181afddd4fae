// Many bytes from every rank for the first alone: what grows with the number of ranks is not sent to all of them.
#pragma once

#include <string>
#include <vector>

#include "host/launch/world.hpp"

namespace chassis {

// [all-ranks] On rank 0 each rank's text, by rank; on the others nothing. `what` is unique among gatherings under way.
std::vector<std::string> gather_on_first(World& world, const std::string& what, const std::string& mine);

}  // namespace chassis
