// Between a session and the checkpoint engine: which tensors are saved under which names, what comes back, what is
// exported. The engine's guarantees are in host/checkpoint.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/format_plugin.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/train/session.hpp"

namespace chassis {

// [all-ranks] Fills the parameters from a checkpoint or model directory, through buckets of its own. `from` empty: the
// newest checkpoint of the run, else model.path. Throws a storage error if there is neither.
void load_weights(Session& session, const std::string& from);

// Plans the checkpoint and the export of a session without writing. Throws what a save would fail with, hours later.
// Returns the bytes of the largest header of a file.
uint64_t prove_saving(Session& session);
// Compares the export with the model directory that the session starts from; differences are counted warnings.
void compare_with_model(Session& session);

// All of it [all-ranks], of the session's world: each rank writes and reads its shards, rank 0 commits, and a failure on
// one is one on all.
class Saver {
 public:
  // Reserves the buckets of all saves and loads and takes the lock of `directory`/checkpoints.
  Saver(Session& session, std::string directory);

  // Fills the parameters from a model directory.
  void start_from(const std::string& model);

  // Publishes step-N with all training state, points `latest` at it, removes old ones.
  SaveResult save(int64_t step, const Json& state);
  struct Resumed {
    std::string checkpoint;
    Json state;  // as given to save()
  };
  // Loads parameters and optimizer states of the checkpoint that run.resume means; nothing if training starts anew. With
  // "auto", one that turns out to be damaged is passed over for the one before it, with a counted warning; if all are,
  // that is an error.
  std::optional<Resumed> resume();
  // The model for others, into `directory`/final or a checkpoint's folder.
  SaveResult export_model(const std::string& name, int64_t step);

 private:
  std::string checkpoints() const { return directory_ + "/checkpoints"; }
  std::vector<CheckpointInfo> candidates();
  Resumed load_checkpoint(const std::string& path);
  LoadResult read_checkpoint(const std::string& path, const std::vector<LoadTensor>& tensors, const LocalTensors& local,
                             Json& state);
  // Made once: what is declared does not change in a run.
  const SavePlan& checkpoint_plan();
  const SavePlan& export_plan();

  Session& session_;
  std::string directory_;
  std::unique_ptr<Instance> checkpoint_instance_, export_instance_;
  FormatPlugin checkpoint_format_, export_format_;
  std::optional<SavePlan> checkpoint_plan_, export_plan_;
  BucketPair buckets_;
  std::optional<CheckpointRoot> root_;  // of rank 0
};

}  // namespace chassis
