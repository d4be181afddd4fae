// Texts that a run logs: at its start, about its memory, and at its end.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "host/data/train_data.hpp"
#include "host/plan/plan.hpp"
#include "host/session/lr_schedule.hpp"
#include "host/session/session.hpp"

namespace chassis {

// "data: 3127 documents, 1.24M tokens; 450 steps are 1.9 epochs". For a run that resumes at `step`: "…; 50 of 450 steps
// are left: 0.4 epochs, after 1.5 epochs", since the steps before may have had another number of rows.
std::string data_text(const TrainData& data, int64_t step, int64_t num_steps, int64_t rows_per_step);
// A text if the run ends before its warm-up; else empty.
std::string warmup_warning(const Settings& settings, const LearningRateSchedule& schedule);
// The schedule of a run of `max_steps` steps.
LearningRateSchedule schedule_of(const Settings& settings, int64_t max_steps);
// A text if all steps after `step` have the rate 0; else empty.
std::string rate_warning(const Settings& settings, const LearningRateSchedule& schedule, int64_t step);
// A text if one step takes more rows than all data has, so that each step trains some of them twice; else empty.
std::string rows_warning(const Settings& settings, const TrainData& data, int64_t rows_per_step);
// A warning, with its key, for each set that has no row among those taken so far and the next `num_rows` of the run.
std::vector<std::pair<std::string, std::string>> unreached_warnings(const TrainData& data, uint64_t num_rows);

// "rows taken: data.train.0 (a.jsonl) 1200 (1.5 epochs), …"; empty if there is one set.
std::string rows_taken_text(const TrainData& data);
// "packing best_fit: 0.98 of the tokens of a row are used"; empty if rows are never padded. With packing none, the text
// says up to which length micro-batches are computed, and why if it is seq_len.
std::string packing_text(const TrainData& data, const Program& program);
// "positions: 12.3K computed, 1.2K (9.8 %) of them padding; 40.1K of padding not computed"; empty without padding.
std::string positions_text(const DataStats& stats);
// The paths of results, when they are written, and how to stop the run.
std::string results_text(const Settings& settings, const PluginTokenizer* tokenizer, const std::string& directory);
// A table of the planned and measured memory of this rank, without empty rows. `by_category`: with a column for the
// measured memory of each category.
std::string memory_text(const PlanMemory& planned, const PlanMemory& measured, uint64_t measured_peak_bytes,
                        uint64_t process_bytes, bool by_category);

// The state of a run that was stopped.
struct Stopped {
  std::string directory;
  int64_t step = 0;
  bool is_saved = false;      // a checkpoint holds the last step
  bool is_resumable = false;  // that checkpoint holds all that a resumed run needs
};
// A hint that says how to resume, or to start from the weights.
std::string resume_hint(const Settings& settings, const Stopped& stopped);
// A hint for a completed run, or for one that eval.patience has ended (`early`). `plugin_path`: as it was given to the
// command.
std::string next_steps(const Settings& settings, const PluginTokenizer* tokenizer, const std::string& directory,
                       bool early, const std::vector<std::string>& plugin_path = {});
// A path as a word of a shell command: quoted if it has more than the usual characters of paths.
std::string shell_word(const std::string& path);

}  // namespace chassis
