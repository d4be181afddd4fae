// When a run saves, what happens where a save fails, and what of the run is on disk at its end. How a checkpoint is
// written is the Saver's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "host/save/saver.hpp"
#include "host/session/session.hpp"
#include "host/train/run_directory.hpp"
#include "host/train/signals.hpp"

namespace chassis {

// All of it [all-ranks], but for what says otherwise.
class RunSaves {
 public:
  // `state` is asked for what a resumed run needs besides tensors.
  RunSaves(Session& session, RunDirectory& directory, RunSignals& signals, std::function<Json()> state);

  Saver& saver() { return saver_; }
  // Whether a checkpoint fits on the disk, before the first step: an error or, with checkpoint.on_error = "warn", a
  // counted warning.
  void check_space();
  // Of this rank: by a signal; on the first also by the clock, or by a file "save" in the run directory.
  bool wanted();
  // By checkpoint.every_steps.
  bool due(int64_t step) const;
  // Starts to save the step, unless it is saved; with export.when = "every" exports it too. One at a time: what is left
  // of the last one comes first. Weights that are not finite replace nothing.
  void save(int64_t step);
  // One stage of the save in progress.
  void advance();
  void finish();
  void export_final(int64_t step);

  // The clock of checkpoint.every_minutes starts.
  void start_clock() { last_save_ = Clock::now(); }
  bool is_saved(int64_t step) const { return saved_step_ == step; }
  // It is on disk already: the run went on from there.
  void set_saved(int64_t step) { signals_.note_saved(saved_step_ = step); }
  bool goes_on_without_saving() const;
  // Of rank 0, at the end: what failed, how often, and which checkpoint is the last whole one. Empty if none failed.
  std::string failures() const;
  // Of rank 0: "the last whole checkpoint is out/checkpoints/step-000400".
  std::string last_whole() const;

 private:
  using Clock = std::chrono::steady_clock;
  void attempt(const std::function<void()>& part);
  void tell(const SaveResult& result);

  Session& session_;
  RunDirectory& directory_;
  RunSignals& signals_;
  std::function<Json()> state_;
  Saver saver_;
  Clock::time_point last_save_ = Clock::now();
  int64_t saved_step_ = -1, saving_step_ = -1;
  int64_t num_failed_ = 0, last_failed_step_ = -1;
};

}  // namespace chassis
