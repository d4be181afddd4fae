// Saves, resumes and exports a run. saved_tensors.hpp lists the tensors; host/checkpoint writes and reads the files.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/disk_space.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/save/base_reference.hpp"
#include "host/save/chat_files.hpp"
#include "host/save/classifier_config.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/save/weights.hpp"

namespace chassis {

// Throws a config error if checkpoint.contents or export.merge ask for what this run cannot save, or if no token can
// pad the rows of a model that scores. Reads no weights.
void require_savable(Session& session);

// All functions are [all-ranks] unless they say otherwise: each rank writes and reads its shards, rank 0 commits, and a
// failure of one rank is thrown on all.
class Saver {
 public:
  // Allocates the buckets for all saves and loads. `root` is `directory`/checkpoints, which the caller has locked on
  // rank 0; if it is NULL, the saver locks it.
  Saver(Session& session, std::string directory, CheckpointRoot* root = nullptr);

  // Fills the parameters with those from which training starts, as load_start_weights() does.
  void start();
  // Fills the parameters from a model directory, and those of an adapter from adapter.path if that is set.
  void start_from(const std::string& model);

  // After the session exchanged its state, while no save is in progress: opens the formats of its configuration, and
  // plans what this rank writes anew.
  void reopen();
  // On rank 0: throws a storage error if the disk has no room for a checkpoint.
  void check_space() { chassis::check_space(checkpoint_bytes_, checkpoints()); }

  // Saves a few small tensors of the run into `directory`/self-test, reads them back, compares every byte, and removes
  // the files. Throws if any of that fails.
  void self_test();

  // The next save of this step makes `best` name it. prune() then keeps it.
  void set_best(int64_t step) { best_step_ = step; }
  // Starts a save of step-N with the tensors of checkpoint.contents. After publishing it, `latest` names it and old
  // checkpoints are removed. Only one save may be in progress. With checkpoint.async it continues on a separate thread
  // while the run trains: it reads the session's tensors before they change, or a copy of them ("staged").
  void begin(int64_t step, const Json& state);
  bool is_saving() const { return save_ != nullptr; }
  // [step] Call before parameters or states change: waits until the save has read them.
  void await_tensors();
  // False if advance() would wait for work of this rank.
  bool ready() const { return !save_ || save_->ready(); }
  // Runs the next stage; returns the result after the last one. After a failure no save is in progress.
  std::optional<SaveResult> advance();
  // Runs all remaining stages.
  SaveResult finish();
  struct Resumed {
    std::string checkpoint;
    Json state;  // as given to begin()
  };
  // Loads parameters and optimizer states of the checkpoint that run.resume selects; returns nothing if training starts
  // from step 0. With "auto", if any rank finds a checkpoint damaged, all ranks skip it and use the one before it. A
  // counted warning names the damage and the checkpoint used; the damaged one is renamed after that is loaded. Throws
  // if all are damaged, or if the next one cannot be read.
  std::optional<Resumed> resume();
  // Exports the model as a model directory, or its adapter, `directory`/`name`. With export.merge, the checkpoint of
  // this step must have been saved.
  SaveResult export_model(const std::string& name, int64_t step);

 private:
  std::string checkpoints() const { return directory_ + "/checkpoints"; }
  void set_aside_damaged(const std::vector<std::string>& passed, const std::string& used);
  void set_base(const std::string& hash);
  BaseReference reference_to_base(const std::string& hash) const;
  void carry_files_of_model(SaveRequest& request) const;
  SaveResult export_merged(SaveRequest request, int64_t step);
  Resumed load_checkpoint(const std::string& path);
  std::string newest_of(const std::string& run) const;
  std::string hint_to_avoid(const std::string& path, int64_t step) const;
  // Throws if it cannot be resumed. Rank 0 also compares its other files, and the optimizer.
  std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path);
  LocalTensors staged_tensors(const SavePlan& plan);
  void compare_with_saved(const std::string& path, const std::vector<Descriptor>& tensors);
  // Plans are made once, since descriptors do not change during a run.
  SavePlanOptions plan_options() const;
  const SavePlan& checkpoint_plan();
  const SavePlan& export_plan();

  Session& session_;
  std::string directory_;
  std::unique_ptr<Instance> checkpoint_instance_, export_instance_;
  std::optional<FormatPlugin> checkpoint_format_, export_format_;  // always set; anew by reopen()
  std::optional<SavePlan> checkpoint_plan_, export_plan_;
  uint64_t checkpoint_bytes_ = 0;          // total of the files of all ranks
  ChatFiles chat_files_;                   // only on rank 0, as the next member
  std::vector<CopiedFile> carried_files_;  // files of model.path; only on rank 0
  std::optional<ScoreHead> head_;          // as files describe it; nothing if the run has no head of scores
  unsigned mode_ = 0644;
  std::optional<BaseReference> base_;  // refers to the frozen parameters; set when they have been loaded
  BucketPair buckets_;
  std::optional<CheckpointRoot> own_root_;
  CheckpointRoot* root_;  // NULL except on rank 0
  int64_t best_step_ = -1;
  std::unique_ptr<Save> save_;  // in progress; uses all of the above
};

}  // namespace chassis
