// Paths as users write them in a configuration.
#pragma once

#include <optional>
#include <string>

namespace chassis {

// Replaces the "~" of "~/x" with the user's home folder, as shells do. Returns the problem, if any: the homes of other
// users are not looked up.
std::optional<std::string> expand_home(std::string& path);

// Replaces "hub:Org/Name@revision" with the folder of that snapshot in the local Hugging Face cache; the revision is
// "main" if left out. Downloads nothing. Returns the problem, if any, with the command that gets a missing snapshot.
std::optional<std::string> expand_hub(std::string& path);

// Advice for a path that looks like the name of a model on the Hugging Face Hub, "Org/Name", if neither it nor the
// folder "Org" exists; else empty.
std::string hub_hint(const std::string& path);

// The reason why the folder can never hold a run or a cache: it is the root of the file system, or in a virtual file
// system such as /proc. Empty if it can.
std::string why_not_writable(const std::string& folder);

}  // namespace chassis
