// The directory of a run as one object: resolved.toml, run.json, plugins.lock, log.txt, metrics.jsonl, checkpoints/,
// final/. Its lock comes first, then every refusal, then the first byte; nothing in it is written through a link.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "host/checkpoint/checkpoint_root.hpp"
#include "host/session/session.hpp"
#include "host/train/metrics_file.hpp"

namespace chassis {

// Two runs are one if model and data are the same; world size, strategy and length may change on resume.
struct RunIdentity {
  std::string model;
  std::string data;
};

class RunDirectory {
 public:
  // [all-ranks] Rank 0 creates the directory, takes the lock of its checkpoints and clears away what killed saves left.
  // Throws if another process has it, or if a rank sees another directory under this name or cannot write there.
  RunDirectory(std::string path, World& world);

  const std::string& path() const { return path_; }
  // Of rank 0; NULL elsewhere.
  CheckpointRoot* checkpoints() { return root_ ? &*root_ : nullptr; }

  // [all-ranks] Refuses what the end of the run would stumble over, whatever is trained: files and folders in the way
  // of those that will be written, and files to be carried along that cannot be read.
  void check_names(const Settings& settings);
  // [all-ranks] Refuses a directory that holds checkpoints or steps of another run, and what run.resume does not go
  // with: "never" with checkpoints, "auto" with the work of a run whose checkpoints are gone.
  void check_identity(const Config& config, const RunIdentity& identity);
  // [all-ranks] Where a run goes on from `checkpoint`, at `step`, that run.resume names: steps of before that are later
  // are set aside and not replaced, with a warning.
  void make_way(const std::string& checkpoint, int64_t step);
  // [all-ranks] Refuses what is in the way of steps after `first_step` up to `last_step`.
  void check_steps(const Settings& settings, int64_t first_step, int64_t last_step);
  // [all-ranks] From now on it is this run's: writes what describes it and opens log.txt.
  void start(Session& session, const RunIdentity& identity);
  // After start(): a checkpoint of the run was published, which run.json says from now on.
  void note_saved();
  // Of rank 0, after start(): metrics.jsonl, for the lines after `step`.
  MetricsFile open_metrics(int64_t step);

 private:
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void prove_same_directory();
  bool holds_work() const;
  void check_start_anew(const Settings& settings);
  void write_run_file() const;

  const std::string path_;
  World& world_;
  std::optional<CheckpointRoot> root_;  // of rank 0
  std::optional<RunIdentity> before_;   // of the run that was there, on rank 0
  Json about_;                          // run.json, on rank 0
  bool has_saved_ = false;              // this run, or the one that was there, has published a checkpoint
  bool keeps_metrics_ = false;          // of before, under another name
};

}  // namespace chassis
