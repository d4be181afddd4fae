// The files of a data set.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/data_config.hpp"

namespace chassis {

// Entries of a folder that are not data, counted by their type: ".md", "subfolder" …
using SkippedEntries = std::map<std::string, uint64_t>;
// ".csv 1, .md 2, subfolder 1"; shortened if there are many.
std::string to_text(const SkippedEntries& skipped);

// The files of a set, whose path is a file, a folder or a pattern; sorted by name. Throws a config error if there are
// none, or if a data file is a broken link.
std::vector<std::string> data_files(const DataSetConfig& config, SkippedEntries* skipped = nullptr);

// A config error about the set as a whole, at its position in the configuration.
Error data_set_error(const DataSetConfig& config, std::string message);

}  // namespace chassis
