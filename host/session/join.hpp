// How a verb becomes one of several processes.
#pragma once

#include <functional>

#include "host/config/settings.hpp"
#include "host/launch/world.hpp"

namespace chassis {

// [control] Runs `body` as the process that the launcher started, alone or as a rank. What it throws on one rank ends
// all of them, each with that error, and also those that are busy elsewhere: see Watchdog.
int join_world(const Settings::Comm& comm, const std::function<int(World&)>& body);

}  // namespace chassis
