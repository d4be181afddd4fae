// The files of a configuration.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// The file and those that it extends, as far as values come from them; none if it is not a regular file, such as a
// pipe. Reads them again; of files that were damaged meanwhile, the first alone is known.
std::vector<std::string> config_files(const std::string& file);

}  // namespace chassis
