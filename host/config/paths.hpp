// Paths as users write them in a configuration.
#pragma once

#include <optional>
#include <string>

namespace chassis {

// Replaces the "~" of "~/x" by the user's home folder, as shells do. Returns what is wrong, if anything: another user's
// home is not looked up.
std::optional<std::string> expand_home(std::string& path);

// Why no run and no cache can be kept in the folder, whatever it holds: the root of the file system, or what the system
// makes up itself; empty if it can.
std::string refused_place(const std::string& folder);

}  // namespace chassis
