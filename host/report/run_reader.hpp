// Reads what a run has written into its directory, while it runs or afterwards, without a lock.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/json.hpp"
#include "host/report/followed_file.hpp"
#include "host/report/history.hpp"

namespace chassis {

struct EvalPoint {
  int64_t step = 0;
  std::string name;
  double loss = 0.0, perplexity = 0.0, seconds = 0.0;
};

// The answers to a set of [[eval.generate]].
struct ScorePoint {
  int64_t step = 0;
  std::string name;
  double score = 0.0;
  uint64_t num_passed = 0, num_rows = 0, num_cut = 0;
};

struct SampleText {
  int64_t step = 0;
  std::string prompt, answer, finish_reason;
};

// A saved checkpoint, as events.jsonl records it.
struct SavedCheckpoint {
  int64_t step = 0;
  double time = 0.0;  // seconds since 1970
  std::string path;
  uint64_t num_bytes = 0;
  double seconds = 0.0, stall_seconds = 0.0;
  bool resumable = false;
};

// A change of what computes the steps, as events.jsonl records it.
struct SwapPoint {
  int64_t step = 0;  // the last one before it
  int64_t generation = 0;
  double time = 0.0;  // seconds since 1970
  std::string id, outcome, cause, change;
  double pause_ms = 0.0;
};

enum class RunStatus { kUnknown, kRunning, kDone, kStopped, kFailed, kKilled };
std::string_view to_text(RunStatus state);  // "running"

struct RankStatus {
  int rank = 0;
  int64_t step = 0;
  double step_ms = 0.0, wait_ms = 0.0;  // in the last step; wait_ms is exposed communication
  uint64_t active_bytes = 0;
  std::optional<double> temperature;  // temperature of the GPU, in °C
};

class RunReader {
 public:
  // Reads what is there. Throws a config error if the directory is not that of a run, and a storage error if a file
  // cannot be read.
  explicit RunReader(std::string path);

  // Reads what is new. Returns whether there was anything.
  bool poll();

  const std::string& path() const { return path_; }
  std::string name() const;
  const History& history() const { return history_; }
  const std::vector<EvalPoint>& evaluations() const { return evaluations_; }
  const std::vector<ScorePoint>& scores() const { return scores_; }
  const std::deque<SampleText>& samples() const { return samples_; }  // the most recent ones
  const std::vector<SavedCheckpoint>& checkpoints() const { return checkpoints_; }
  // Each with its last outcome: "activated" while it is on probation.
  const std::vector<SwapPoint>& swaps() const { return swaps_; }
  const std::vector<RankStatus>& ranks() const { return ranks_; }
  // The warnings that the run has counted so far, each with its count.
  const std::vector<std::pair<std::string, uint64_t>>& warnings() const { return warnings_; }
  // report.json, run.json and plugins.lock; null if absent or damaged.
  const Json& about() const { return about_; }
  const Json& run_file() const { return run_file_; }
  const Json& plugins() const { return plugins_; }
  const std::string& resolved_toml() const { return resolved_toml_; }
  RunStatus state() const;
  int64_t max_steps() const;
  int64_t last_step() const;                         // from metrics, or from events if there are no metrics
  double seconds() const;                            // total over all starts, each up to its last event or step
  bool has_metrics() const { return has_metrics_; }  // metrics.jsonl exists
  // "3 damaged lines of metrics.jsonl, the first is line 17"; for people.
  std::vector<std::string> defects() const;

 private:
  struct Damage {
    uint64_t count = 0, first_line = 0;
  };
  bool poll_metrics();
  bool follow(FollowedFile& file, void (RunReader::*take)(std::string_view, uint64_t),
              const std::function<void()>& restart);
  bool poll_samples();
  bool poll_events();
  bool poll_ranks();
  void metrics_line(std::string_view text, uint64_t number);
  template <class Value>
  void add_evaluation(int64_t step, std::string name, const Value& value);
  void sample_line(std::string_view text, uint64_t number);
  void event_line(std::string_view text, uint64_t number);
  // True if this file has changed since the last call; run files are replaced, never changed in place.
  bool is_replaced(const std::string& name);
  Json read_json(const std::string& name);
  std::string read_text(const std::string& name);

  const std::string path_;
  FollowedFile metrics_file_, samples_file_, events_file_;
  Damage damaged_metrics_, damaged_samples_, damaged_events_;
  std::map<std::string, std::string> damaged_files_;        // by name: the message about the file
  std::map<std::string, std::array<int64_t, 5>> versions_;  // results of stat(), for files that are read whole
  struct Parser;
  std::shared_ptr<Parser> parser_;

  History history_;
  std::vector<EvalPoint> evaluations_;
  std::vector<ScorePoint> scores_;
  std::deque<SampleText> samples_;
  std::vector<SavedCheckpoint> checkpoints_;
  std::vector<SwapPoint> swaps_;
  std::vector<RankStatus> ranks_;
  std::string ranks_text_;
  std::vector<std::pair<std::string, uint64_t>> warnings_;
  Json about_, run_file_, plugins_;
  std::string resolved_toml_;
  std::optional<double> start_time_;
  double last_time_ = 0.0, seconds_before_ = 0.0;
  int64_t event_step_ = 0;
  std::string host_ = "", outcome_ = "";
  int64_t process_ = 0;
  bool has_metrics_ = false, has_events_ = false, went_back_ = false;
};

}  // namespace chassis
