// What a session saves, under which names and in which formats; and the plans that follow from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/checkpoint/format_plugin.hpp"
#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The format that [checkpoint] or [export] names, in use.
std::unique_ptr<Instance> slot_format(Session& session, const PluginTable& slot);
// The format of a directory: its manifest says, or else it is what exports are written in.
std::string format_of(Session& session, const std::string& path);
// A checkpoint or model directory. If it is not of that format, by the first installed one that finds something there.
std::unique_ptr<CheckpointReader> open_directory(Session& session, const std::string& path);
// Of each of the two buckets.
uint64_t bucket_bytes(const Session& session);

// checkpoint.contents: all that a resumed run needs, or parameters alone.
bool saves_all(Session& session);
// Parameters by name; for a run that is to be resumed also optimizer states by parameter and role. As they are saved
// and loaded: ranks that hold the same share the writing and reading of it by bytes.
std::vector<Descriptor> training_tensors(Session& session, bool with_states);
LocalTensors local_tensors(Session& session, bool with_states);

// What plan_export() has: parameters, and the literal tensors of the model's files.
LocalTensors exported_tensors(Session& session);

SavePlan plan_checkpoint(Session& session, const FormatPlugin& format);
// Parameters as the model's files hold them, in the dtype of export.dtype, and the literal tensors beside them.
SavePlan plan_export(Session& session, const FormatPlugin& format);
// The model's config with the dtype that the export is written in, under both of its names.
std::string export_config(Session& session);

// False of more shards than can be proven while someone waits.
bool can_prove_saving(Session& session);
// Plans the checkpoint and the export of a session without writing. Throws what a save would fail with, hours later.
// Returns the bytes of the largest header of a file.
uint64_t prove_saving(Session& session);
// What checkpoint.async = "staged" copies on this rank at every save; of too many shards to plan one, what it stores,
// which is as much or more.
uint64_t staged_bytes(Session& session);
// Compares the export with the model directory that the session starts from; differences are counted warnings.
void compare_with_model(Session& session);
void compare_with_model(Session& session, const SavePlan& plan);

}  // namespace chassis
