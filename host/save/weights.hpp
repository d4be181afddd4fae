// Loads weights from a checkpoint, model directory or adapter into a session.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/save/base_reference.hpp"
#include "host/session/session.hpp"

namespace chassis {

// True for a run directory, which stands for its newest checkpoint.
bool is_run_directory(const std::string& path);
// The run directory, if `path` is its folder checkpoints/; else `path`.
std::string run_of(const std::string& path);

// The mode for files made from model.path and adapter.path, as shared_file_mode(); one that is not a directory does not
// count.
unsigned shared_file_mode(const Settings& settings);

struct LoadedWeights {
  std::string directory;
  std::string hash;  // of the frozen weights; empty: not needed for checkpoints or adapters, or not known
};

// [all-ranks] Fills the parameters from a checkpoint or model directory, through buckets allocated for this call. If
// `from` is a run directory, loads the checkpoint of that run that load_best() finds. If `from` is empty, loads that of
// run.output_dir, or model.path if there is none. Throws a storage error if there is neither.
LoadedWeights load_weights(Session& session, const std::string& from);
// The same from the checkpoint or model directory `path`, or from an adapter's. What it leaves out is filled too:
// frozen parameters from model.path, added ones from adapter.path or with new values. Returns the hash of the frozen
// ones if checkpoints of the session refer to them (BaseReference), or adapters are loaded on them.
std::string load_weights(Session& session, const std::string& path, const BucketPair& buckets);
// [all-ranks] Fills the parameters with those from which training starts: those of model.path, or random ones, with
// those of adapter.path. Returns what load_weights() returns; empty if they are random.
std::string load_start_weights(Session& session, const BucketPair& buckets);
// [all-ranks] Fills the parameters with the same, or with those of reference.path if that is set.
void load_reference_weights(Session& session);
// [all-ranks] Fills the model's parameters, which `needed_by` leaves out, from model.path, and returns the hash of the
// frozen ones. Throws an error that names both if they are missing, or differ from `reference`.
std::string load_base(Session& session, const BucketPair& buckets, const std::string& needed_by,
                      const std::optional<BaseReference>& reference);
// [all-ranks] Fills the parameters that an adapter added or trains. `base_hash` is that of the frozen ones, as
// load_weights() returns it, to compare the base with that of the adapter; empty if it is not known.
void load_adapter(Session& session, const std::string& path, const BucketPair& buckets, const std::string& base_hash);
// [all-ranks] The same for a session that shares its frozen parameters with one that has loaded `base`. Allocates the
// buckets for this call.
void load_adapter_on(Session& session, const std::string& path, const LoadedWeights& base);
// Throws what load_adapter() would throw if the files of the adapter do not fit the session. For programs of one
// process; reads no weights.
void check_adapter(Session& session, const std::string& path);
// Throws what load_weights() would throw if the weights of model.path do not fit the model, if a run starts from them.
// For programs of one process; reads no weights.
void check_weights(Session& session);
// The same for the weights of reference.path, if it is set.
void check_reference_weights(Session& session);

// [all-ranks] Calls `find` on rank 0 and returns its result on all ranks.
std::string find_on_rank_0(World& world, const std::string& what, const std::function<std::string()>& find);
// [all-ranks] Calls `load` with the checkpoints of a run, best first, until one is intact, as use_first_intact() does.
// Returns that one. `load` is [all-ranks] and throws DamagedCheckpoint on all ranks; `on_skipped` is called on rank 0.
std::optional<CheckpointInfo> load_best(World& world, const std::string& root,
                                        const std::function<void(const std::string& path)>& load,
                                        const SkipCallback& on_skipped = warn_skipped_checkpoint);

}  // namespace chassis
