// What a resumed run does otherwise than the run that was saved: said, line by line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/session/schedule.hpp"
#include "host/session/session.hpp"

namespace chassis {

struct ResumeDifference {
  std::string key;   // "optimizer.lr", "plugin adamw", "learning rate"
  std::string text;  // both values
};

struct ResumeDifferences {
  std::vector<ResumeDifference> counted;
  // What people change on resume: length, places, how ranks share the work, when to log, save and evaluate.
  std::vector<ResumeDifference> expected;
};

// What the trainer adds to the state of a checkpoint, because configurations alone do not say it.
struct ResolvedLength {
  int64_t max_steps = 0;
  int64_t global_batch_size = 0;
};
Json to_json(const ResolvedLength& length);

// Compares the checkpoint that a run goes on from, at `step`, with the session as it is now. A checkpoint that says
// nothing about its settings, such as an imported one, gives no differences.
ResumeDifferences resume_differences(const std::string& checkpoint, int64_t step, const ResolvedLength& now,
                                     const LearningRateSchedule& schedule, Session& session);
// Where the model's config.json, as it was saved beside these weights, differs from the session's model: keys that both
// have. Nothing where there is no config.json.
std::vector<ResumeDifference> model_differences(const std::string& weights, const Session& session);
// Of the settings that describe a run's model or data ("model", "data"), those in which resolved.toml of the run
// directory differs from this configuration.
std::vector<ResumeDifference> settings_that_differ(const std::string& run, const std::string& table,
                                                   const Config& config);
// Throws a config error if the checkpoint was written with another optimizer than `is`, which cannot use its states.
void require_same_optimizer(const std::string& checkpoint, const Setting<std::string>& is);
// Logs them; throws a config error with all that are counted if `strict`, which is run.strict.
void report(const ResumeDifferences& differences, const std::string& checkpoint, const Setting<bool>& strict);

}  // namespace chassis
