// Starts saves when they are due, and handles saves that fail.
#include "host/train/run_saves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "host/base/log.hpp"
#include "host/launch/world.hpp"
#include "host/plugin/process_settings.hpp"
#include "host/save/pad_token.hpp"
#include "host/save/weights.hpp"
#include "host/session/finite.hpp"

namespace chassis {

RunSaves::RunSaves(Session& session, ReplicaCheck& replicas, RunDirectory& directory, RunSignals& signals,
                   std::function<Json()> state)
    : session_(session),
      replicas_(replicas),
      directory_(directory),
      signals_(signals),
      state_(std::move(state)),
      saver_(session, directory.path(), directory.checkpoints()) {}

bool RunSaves::continues_after_failed_save() const {
  return session_.settings().checkpoint.on_error == OnSaveError::kWarn;
}

void RunSaves::check_space() {
  session_.world().run_and_agree("looking for free space", [this] {
    if (session_.world().rank() != 0) return;
    try {
      saver_.check_space();
    } catch (const Error& lack) {
      if (lack.code() != ExitCode::kStorage || !continues_after_failed_save()) throw;
      counted_warning("no room for a checkpoint", lack.what());
    }
  });
}

bool RunSaves::is_requested() {
  if (signals_.take_save_request()) return true;
  if (session_.world().rank() != 0) return false;
  std::error_code ignored;
  if (std::filesystem::remove(directory_.path() + "/save", ignored)) return true;
  const double minutes = session_.settings().checkpoint.every_minutes;
  return minutes > 0.0 && std::chrono::duration<double>(Clock::now() - last_save_).count() >= 60.0 * minutes;
}

bool RunSaves::due(int64_t step) const {
  const int64_t every = session_.settings().checkpoint.every_steps;
  return every > 0 && step % every == 0;
}

void RunSaves::save(int64_t step) {
  if (saved_step_ == step) return;
  finish();
  require_finite_after(session_.state(), session_.world(), step);
  if (session_.settings().run.replica_check_steps > 0) replicas_.require_equal(step);
  saving_step_ = step;
  attempt([&] {
    check_directory();
    saver_.begin(step, state_());
    saved_step_ = step;
  });
  start_clock();
  const Settings& settings = session_.settings();
  const bool exports = settings.exports.when == ExportWhen::kEvery;
  if (settings.checkpoint.async == AsyncSave::kOff || exports) finish();
  if (exports) attempt([&] { export_model("export-" + step_directory_name(step), step); });
}

void RunSaves::check_directory() {
  session_.world().run_and_agree("looking at the run directory", [this] {
    require_process_settings(session_.plugins().registry().settings_before_plugins(), "", "before a save");
    if (session_.world().rank() == 0) directory_.check_held();
  });
}

void RunSaves::save_best(int64_t step) {
  saver_.set_best(step);
  save(step);
}

bool RunSaves::restore_best(int64_t step) {
  const std::string name = step < 0 ? "" : step_directory_name(step);
  return !find_on_rank_0(session_.world(), "looking for the best checkpoint", [&]() -> std::string {
            CheckpointRoot& root = *directory_.checkpoints();
            const bool exists = !name.empty() && is_checkpoint(root.path() + "/" + name);
            root.set_best(exists ? name : "");
            return exists ? name : "";
          }).empty();
}

void RunSaves::advance() {
  attempt([this] {
    if (const auto result = saver_.advance()) report_saved(*result);
  });
}

void RunSaves::finish() {
  if (saver_.is_saving()) attempt([this] { report_saved(saver_.finish()); });
}

void RunSaves::export_final(int64_t step) {
  require_finite_after(session_.state(), session_.world(), step);
  export_model("final", step);
}

void RunSaves::export_model(const std::string& name, int64_t step) {
  try {
    check_directory();
    log::info("{}", saver_.export_model(name, step).line());
  } catch (const RemoteError&) {
    throw;
  } catch (const Error& cause) {
    const std::string target = directory_.path() + "/" + name;
    const std::string checkpoint = directory_.path() + "/checkpoints/" + step_directory_name(step);
    const std::string kept = is_saved(step) ? "the checkpoint " + checkpoint + " is kept"
                                            : "it is not saved as a checkpoint either, " + last_checkpoint_text();
    Error error(cause.code(), fmt::format("step {} was not exported to {}; {}", step, target, kept));
    error.caused_by(cause);
    if (is_saved(step)) error.hint("then `chassis ckpt export " + checkpoint + " " + target + "` exports it again");
    throw error;
  }
  if (!scored_row_) return;
  session_.world().run_and_agree("scoring a row by its ids", [&] {
    if (session_.world().rank() == 0)
      require_score_at_end_in(directory_.path() + "/" + name, scored_row_->ids, scored_row_->where);
  });
}

void RunSaves::report_saved(const SaveResult& result) {
  log::info("{}", result.line());
  signals_.note_saved(saved_step_);
  if (saved_) saved_(saved_step_, result);
  session_.world().run_and_agree("noting the save", [this] { directory_.note_saved(); });
}

// Runs a part of a save. Its failure ends the run, or is counted if checkpoint.on_error = "warn".
void RunSaves::attempt(const std::function<void()>& part) {
  try {
    part();
  } catch (const Error& e) {
    if (e.code() != ExitCode::kStorage || !continues_after_failed_save()) throw;
    saved_step_ = -1;
    ++num_failed_;
    last_failed_step_ = saving_step_;
    log::counted_warning("save failed", e.what());
  }
}

std::string RunSaves::failures() const {
  if (num_failed_ == 0) return "";
  return fmt::format("{} {} failed, the last at step {}; {}", num_failed_, num_failed_ == 1 ? "save" : "saves",
                     last_failed_step_, last_checkpoint_text());
}

// Checks only manifests and sizes. Throws nothing, since the run is ending.
std::string RunSaves::last_checkpoint_text() const {
  const std::string root = directory_.path() + "/checkpoints";
  try {
    for (const CheckpointInfo& info : checkpoints_to_resume(root))
      if (info.defect.empty() && info.unreadable.empty()) return "the last intact checkpoint is " + info.path;
  } catch (const Error& error) {
    return root + " cannot be read: " + error.message();
  }
  return "there is no intact checkpoint in " + root;
}

}  // namespace chassis
