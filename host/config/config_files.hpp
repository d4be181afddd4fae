// The files of a configuration.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// Returns the file and those of the files that it extends from which values come; nothing if it is not a regular file,
// such as a pipe. Reads them again; if one of them has become invalid meanwhile, returns only `file`.
std::vector<std::string> config_files(const std::string& file);

}  // namespace chassis
