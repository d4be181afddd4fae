// Decides when a run saves, and handles saves that fail. Saver writes the checkpoints.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/save/saver.hpp"
#include "host/session/replicas.hpp"
#include "host/session/session.hpp"
#include "host/train/run_directory.hpp"
#include "host/train/signals.hpp"

namespace chassis {

// All functions are [all-ranks] unless they say otherwise.
class RunSaves {
 public:
  // `state` returns what a resumed run needs in addition to the tensors.
  RunSaves(Session& session, ReplicaCheck& replicas, RunDirectory& directory, RunSignals& signals,
           std::function<Json()> state);

  Saver& saver() { return saver_; }
  // After the session exchanged its state: see Saver::reopen().
  void reopen() { saver_.reopen(); }
  // Before the first step: throws if the disk has no room for a checkpoint, or counts a warning if checkpoint.on_error
  // = "warn".
  void check_space();
  // True if this rank requests a save: after a signal; on rank 0 also after checkpoint.every_minutes, or if the run
  // directory has a file "save". Not [all-ranks].
  bool is_requested();
  // True if checkpoint.every_steps makes this step due.
  bool due(int64_t step) const;
  // Starts to save the step, unless it is saved already; with export.when = "every" also exports it. First finishes a
  // save in progress. Throws a numeric error if the parameters are not finite, or if replicas differ.
  void save(int64_t step);
  // The same for the step with the best evaluation: `best` names its checkpoint, which is kept.
  void save_best(int64_t step);
  // After a resume, makes `best` name the checkpoint of this step; -1 removes the link. Returns whether there is such a
  // checkpoint.
  bool restore_best(int64_t step);
  // Runs the next stage of the save in progress.
  void advance();
  void finish();
  void export_final(int64_t step);

  // [step] Called on rank 0 for every checkpoint that was saved.
  void set_listener(std::function<void(int64_t step, const SaveResult& result)> saved) { saved_ = std::move(saved); }
  // A sequence that the run scores, with its row. After an export, other programs must find its score at its last
  // token, from its ids alone.
  struct ScoredRow {
    std::vector<int32_t> ids;
    SourcePosition where;
  };
  void set_scored_row(ScoredRow row) { scored_row_ = std::move(row); }
  // Starts the clock of checkpoint.every_minutes.
  void start_clock() { last_save_ = Clock::now(); }
  bool is_saved(int64_t step) const { return saved_step_ == step; }
  // The run resumed from this step, so its checkpoint exists.
  void set_saved(int64_t step) { signals_.note_saved(saved_step_ = step); }
  bool continues_after_failed_save() const;
  // On rank 0, at the end: the number of failed saves, the last of them, and the last intact checkpoint. Empty if none
  // failed.
  std::string failures() const;
  // On rank 0: "the last intact checkpoint is out/checkpoints/step-000400".
  std::string last_checkpoint_text() const;

 private:
  using Clock = std::chrono::steady_clock;
  void check_directory();
  void attempt(const std::function<void()>& part);
  void export_model(const std::string& name, int64_t step);
  void report_saved(const SaveResult& result);

  Session& session_;
  ReplicaCheck& replicas_;
  RunDirectory& directory_;
  RunSignals& signals_;
  std::function<Json()> state_;
  Saver saver_;
  std::function<void(int64_t step, const SaveResult& result)> saved_;
  std::optional<ScoredRow> scored_row_;
  Clock::time_point last_save_ = Clock::now();
  int64_t saved_step_ = -1, saving_step_ = -1;
  int64_t num_failed_ = 0, last_failed_step_ = -1;
};

}  // namespace chassis
