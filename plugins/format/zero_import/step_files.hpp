// The files of one step in a checkpoint directory.
#pragma once

#include <map>

#include "source.hpp"

namespace zero_import {

inline constexpr char kModelSuffix[] = "_model_states.pt";

struct StepFiles {
  std::vector<uint32_t> optimizer;                      // by rank
  std::map<std::string, uint32_t, std::less<>> others;  // of the model, by name
};

// Throws NotFound if there is no optimizer's file, and a Defect if one is missing or if the run was model, pipeline or
// expert parallel.
StepFiles find_files(const Source& source);

}  // namespace zero_import
