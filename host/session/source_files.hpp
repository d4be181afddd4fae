// The files that a run reads its data from.
#pragma once

#include <string>
#include <vector>

#include "host/session/data_needs.hpp"

namespace chassis {

// The files of all data sets.
std::vector<std::string> data_source_files(const DataNeeds& needs);

}  // namespace chassis
