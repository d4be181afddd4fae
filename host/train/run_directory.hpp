// The run directory: resolved.toml, run.json, report.json, plugins.lock, log.txt, metrics.jsonl, samples.jsonl,
// events.jsonl, ranks.json, generations/, checkpoints/, final/. First it is locked, then everything is checked, then
// the first byte is written. Nothing is written through a link.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/compile/compile.hpp"
#include "host/config/config.hpp"
#include "host/launch/world.hpp"
#include "host/plugin/registry.hpp"
#include "host/train/metrics_file.hpp"

namespace chassis {

// The folder with the answers to sets of [[eval.generate]].
inline constexpr char kGenerationsFolder[] = "generations";

// Identifies a run: a resumed run has the same model and data. World size, strategy and length may change.
struct RunIdentity {
  std::string model;
  std::string data;
  Json content = Json::object();  // of the data files, to name what changed
};

class RunDirectory {
 public:
  // [all-ranks] Rank 0 creates the directory, locks its checkpoints and removes the files of killed saves. Throws if
  // another process holds the lock, or if a rank sees another directory under this path or cannot write there.
  RunDirectory(std::string path, World& world);

  const std::string& path() const { return path_; }
  // On rank 0, before each save: throws a storage error if the directory, its checkpoints/ or their lock was removed,
  // renamed or replaced, because another run may then be using this path.
  void check_held() const;
  // NULL except on rank 0.
  CheckpointRoot* checkpoints() { return root_ ? &*root_ : nullptr; }

  // [all-ranks] Throws now what would fail at the end of the run: files and folders in the way of those that the run
  // will write, and files of model.path to copy that cannot be read.
  void check_names(const Settings& settings);
  // [all-ranks] Throws if the directory has checkpoints or steps of another run, or contradicts run.resume: "never"
  // with checkpoints, "auto" with the results of a run whose checkpoints are gone.
  void check_identity(const Config& config, const RunIdentity& identity);
  // [all-ranks] For a run that resumes from `checkpoint` at `step`, which run.resume or the link `latest` names:
  // renames the checkpoints of later steps instead of replacing them, and counts a warning.
  void set_later_steps_aside(const std::string& checkpoint, int64_t step);
  // [all-ranks] Throws if something is in the way of the checkpoints of steps after `first_step` up to `last_step`.
  void check_steps(const Settings& settings, int64_t first_step, int64_t last_step);
  // [all-ranks] Writes the files that describe the run, and opens log.txt.
  void start(const Config& config, const PluginRegistry& plugins, const CompiledProgram& program,
             const RunIdentity& identity);
  // On rank 0, after start(): writes what describes the run anew, each file by one rename.
  void describe(const Config& config, const PluginRegistry& plugins, const CompiledProgram& program) const;
  // After start(): records in run.json that the run has saved a checkpoint.
  void note_saved();
  // On rank 0, after start(): writes report.json, "chassis.run/1", which begins with its schema.
  void write_report(const Json& facts) const;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // On rank 0, after start(): opens metrics.jsonl for the lines after `step`.
  MetricsFile open_metrics(int64_t step);
  // The same for samples.jsonl.
  MetricsFile open_samples(int64_t step);

 private:
  void lock();
  void check_same_directory();
  bool holds_work() const;
  void check_start_anew(const Settings& settings);
  void write_run_file() const;

  const std::string path_;
  World& world_;
  std::vector<File> held_;              // the directory, its checkpoints/ and their lock, on rank 0
  std::optional<CheckpointRoot> root_;  // on rank 0
  std::optional<RunIdentity> before_;   // identity of the previous run in the directory, on rank 0
  Json about_;                          // run.json, on rank 0
  bool has_saved_ = false;              // this run, or the previous one, has saved a checkpoint
  bool keeps_metrics_ = false;          // keeps the metrics of the previous run, under another name
};

}  // namespace chassis
