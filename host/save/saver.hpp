// The checkpoints of a run: saved, resumed, exported. What is saved is in saved_tensors.hpp, the engine and its
// guarantees in host/checkpoint.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/save/saved_tensors.hpp"

namespace chassis {

// All of it [all-ranks], of the session's world: each rank writes and reads its shards, rank 0 commits, and a failure
// on one is one on all.
class Saver {
 public:
  // Reserves the buckets of all saves and loads. `root`: `directory`/checkpoints, locked by the caller on rank 0; NULL:
  // locked here.
  Saver(Session& session, std::string directory, CheckpointRoot* root = nullptr);

  // Fills the parameters from a model directory.
  void start_from(const std::string& model);

  // Of rank 0: throws a storage error unless a checkpoint fits where it will be written.
  void check_space() { chassis::check_space(checkpoint_plan(), checkpoints()); }

  // Saves a few small tensors of the run for real into `directory`/self-test, reads them back, compares every byte, and
  // removes them. Throws what went wrong.
  void self_test();

  // Starts a save of step-N with all that checkpoint.contents names; once published, `latest` points at it and old ones
  // are removed. One at a time. With checkpoint.async it goes on while the run does: on a thread of its own, reading
  // the session's tensors until the next change, or a copy of them ("staged").
  void begin(int64_t step, const Json& state);
  bool is_saving() const { return save_ != nullptr; }
  // [step] Before parameters or states change: waits until they have been read.
  void await_tensors();
  // False while this rank has work to do before advance() would not wait.
  bool ready() const { return !save_ || save_->ready(); }
  // One stage further; the result when that was the last. After a failure nothing is being saved.
  std::optional<SaveResult> advance();
  // All that is left of it.
  SaveResult finish();
  struct Resumed {
    std::string checkpoint;
    Json state;  // as given to save()
  };
  // Loads parameters and optimizer states of the checkpoint that run.resume means; nothing if training starts anew.
  // With "auto", one that turns out to be damaged, wherever and on whichever rank, is passed over by all for the one
  // before it, with a counted warning that names the damage and where it goes on, and is renamed once that is loaded.
  // If all are damaged, or the next one to try cannot be read, that is an error.
  std::optional<Resumed> resume();
  // The model for others, into `directory`/final or a checkpoint's folder.
  SaveResult export_model(const std::string& name, int64_t step);

 private:
  std::string checkpoints() const { return directory_ + "/checkpoints"; }
  void keep_aside(const std::vector<std::string>& passed, const std::string& used);
  void carry_files_of_model(SaveRequest& request) const;
  Resumed load_checkpoint(const std::string& path);
  std::string newest_of(const std::string& run) const;
  std::string how_to_avoid(const std::string& path, int64_t step) const;
  std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path);
  // Made once: what is declared does not change in a run.
  LocalTensors staged_tensors(const SavePlan& plan);
  void compare_with_saved(const std::string& path, const std::vector<Descriptor>& tensors);
  const SavePlan& checkpoint_plan();
  const SavePlan& export_plan();

  Session& session_;
  std::string directory_;
  std::unique_ptr<Instance> checkpoint_instance_, export_instance_;
  FormatPlugin checkpoint_format_, export_format_;
  std::optional<SavePlan> checkpoint_plan_, export_plan_;
  std::vector<CarriedFile> carried_files_;  // of the model directory that the run starts from; on rank 0
  unsigned mode_ = 0644;
  BucketPair buckets_;
  std::optional<CheckpointRoot> own_root_;
  CheckpointRoot* root_;        // of rank 0; NULL elsewhere
  std::unique_ptr<Save> save_;  // in progress; uses all of the above
};

}  // namespace chassis
