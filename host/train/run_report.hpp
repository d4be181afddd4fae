// What a run says of itself, as text: at its start, of its memory, and at its end.
#pragma once

#include <cstdint>
#include <string>

#include "host/data/train_data.hpp"
#include "host/plan/plan.hpp"
#include "host/session/session.hpp"

namespace chassis {

// "data: 3127 documents, 1.24M tokens; 450 steps are 1.9 epochs"
std::string data_text(const TrainData& data, int64_t num_steps, int64_t rows_per_step);
// Where results go, when, and how the run is stopped.
std::string results_text(const Settings& settings, const std::string& directory);
// A table of what was planned for this rank and what was counted. Rows of nothing are left out; `by_category`: measured
// too.
std::string memory_text(const PlanMemory& planned, const PlanMemory& measured, uint64_t measured_peak_bytes,
                        uint64_t process_bytes, bool by_category);

// What a stopped run left.
struct Stopped {
  std::string directory;
  int64_t step = 0;
  bool is_saved = false;      // the last step is in a checkpoint
  bool is_resumable = false;  // which holds all that a resumed run needs
};
// What to do to go on: only what will work.
std::string how_to_go_on(const Settings& settings, const Stopped& stopped);
// What can be done with a run that is done.
std::string what_next(const Settings& settings, const std::string& directory);

}  // namespace chassis
