// Weights in and out of a session: from a checkpoint or model directory, and from one to the other.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/session/session.hpp"

namespace chassis {

// Whether it stands for its newest checkpoint.
bool is_run_directory(const std::string& path);
// The run whose folder of checkpoints it is; else the path itself.
std::string run_of(const std::string& path);

// [all-ranks] Fills the parameters from a checkpoint or model directory, through buckets of its own. `from` a run
// directory: the best checkpoint of that run. `from` empty: the
// best checkpoint of the run as load_best() finds it; model.path if the run has none. Throws a storage error if there
// is neither.
void load_weights(Session& session, const std::string& from);
// The same from this directory.
void load_weights(Session& session, const std::string& path, const BucketPair& buckets);

// [all-ranks] What rank 0 finds is what all ranks go by.
std::string found_by_first(World& world, const std::string& what, const std::function<std::string()>& find);
// [all-ranks] The checkpoint of a run to go on from: gives `load` one after the other until one is whole, as use_best()
// does. `load` is [all-ranks] and throws DamagedCheckpoint on all of them; `passed_over` is called on rank 0.
std::optional<CheckpointInfo> load_best(World& world, const std::string& root,
                                        const std::function<void(const std::string& path)>& load,
                                        const PassedOver& passed_over = pass_over);
// [all-ranks] As world.together(); damage that one rank finds is thrown on all as such.
void together_unless_damaged(World& world, const std::string& what, const std::function<void()>& part);
// [all-ranks] Throws if ranks see different files in this directory: what one of them misses is no damage.
void expect_same_files(World& world, const std::string& path);
// How one rank of a session reads its part.
LoadOptions load_options(Session& session);
// [all-ranks] What one rank has read, all that hold it get from there.
void share_what_was_read(Session& session, const std::vector<LoadTensor>& tensors, const LoadResult& result,
                         const LocalTensors& local, const BucketPair& buckets);

struct ExportRequest {
  std::string checkpoint;  // or model directory
  std::string directory;   // is made
  std::string dtype = "auto";
  std::string format = {};  // empty: what export.plugin is by default
  std::string base = {};    // whose tokenizer and other files are taken along; empty: the checkpoint's own
  std::vector<std::string> plugin_path = {};
};
// A checkpoint as a model directory for others, in one process: through two buckets, no tensor is ever held. Of what it
// says only config.json is believed: no plugin and no path is taken from it.
SaveResult export_checkpoint(const ExportRequest& request);

}  // namespace chassis
