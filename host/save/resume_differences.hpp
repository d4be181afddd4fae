// The differences between a resumed run and the run that was saved, one line each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/session/lr_schedule.hpp"
#include "host/session/session.hpp"

namespace chassis {

struct ResumeDifference {
  std::string key;   // "optimizer.lr", "plugin adamw", "learning rate"
  std::string text;  // both values
};

struct ResumeDifferences {
  std::vector<ResumeDifference> counted;
  // Settings that may change on resume: length, paths, how ranks share the work, when to log, save and evaluate.
  std::vector<ResumeDifference> expected;
};

// Saved by the trainer in the state of a checkpoint, since the configuration alone does not determine it.
struct ResolvedLength {
  int64_t max_steps = 0;
  int64_t global_batch_size = 0;
};
Json to_json(const ResolvedLength& length);
// The same for a pipeline's schedule, whose lists may come from a file. Null if the pipeline does not divide the units.
Json pipeline_record(const Pipeline& pipeline);

// Compares the checkpoint from which a run resumes at `step` with the session. A checkpoint without settings, such as
// an imported one, gives no differences.
ResumeDifferences resume_differences(const std::string& checkpoint, int64_t step, const ResolvedLength& now,
                                     const LearningRateSchedule& schedule, Session& session);
// The keys of the session's model whose values differ in the config.json next to these weights; keys that only one of
// them has are ignored. Empty if there is no config.json.
std::vector<ResumeDifference> model_differences(const std::string& weights, const Session& session);
// The settings of `table` ("model", "data" or "adapter") that differ between resolved.toml of the run directory and
// this configuration.
std::vector<ResumeDifference> settings_that_differ(const std::string& run, const std::string& table,
                                                   const Config& config);
// Throws a config error if the checkpoint was written with another optimizer than `is`, which cannot use those states.
void require_same_optimizer(const std::string& checkpoint, const Setting<std::string>& is);
// Logs the differences. If `strict` (run.strict) is true, throws a config error that lists all counted ones instead.
void report(const ResumeDifferences& differences, const std::string& checkpoint, const Setting<bool>& strict);

}  // namespace chassis
