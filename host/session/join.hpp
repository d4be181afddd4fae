// Runs a verb as one of the processes of a launcher.
#pragma once

#include <functional>

#include "host/config/settings.hpp"
#include "host/launch/world.hpp"

namespace chassis {

// [control] Runs `body` in this process, alone or as a rank that a launcher started. An exception on one rank ends all
// ranks with that error, even those that are busy (see Watchdog).
int join_world(const Settings::Comm& comm, const std::function<int(World&)>& body);

}  // namespace chassis
