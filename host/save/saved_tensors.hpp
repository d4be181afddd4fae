// The tensors that a session saves, their names and formats, and the plans made from them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/checkpoint/format_plugin.hpp"
#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/save/adapter_files.hpp"
#include "host/session/session.hpp"

namespace chassis {

// An instance of the format that [checkpoint] or [export] names.
std::unique_ptr<Instance> slot_format(Session& session, const PluginTable& slot);
// Opens a checkpoint or model directory in the format that its manifest names or, without a manifest, in that of
// [export], else in the first of the other installed formats that recognizes its files. Throws OtherFormat if none
// does. Reads no adapter without a manifest.
std::unique_ptr<CheckpointReader> open_directory(Session& session, const std::string& path);
// Opens the files of an adapter.
std::unique_ptr<CheckpointReader> open_adapter(Session& session, const std::string& path);
// The size of each of the two buckets.
uint64_t bucket_bytes(const Session& session);

// checkpoint.contents: true if checkpoints hold optimizer states, so that a run can resume; false if only parameters.
bool saves_states(const Session& session);
// checkpoint.contents: which parameters checkpoints hold.
enum class Which { kAll, kKept };  // kKept: as is_kept() says
Which saved_parameters(const Session& session);
// True if checkpoints leave out frozen parameters, and refer to the model that has them (BaseReference).
bool refers_to_base(const Session& session);
// The descriptors of parameters and, with `with_states`, of optimizer states, as they are saved and loaded: ranks that
// hold the same data divide its writing and reading by bytes.
std::vector<Descriptor> training_tensors(Session& session, bool with_states, Which which = Which::kAll);
LocalTensors local_tensors(Session& session, bool with_states);

// The tensors of plan_export(): parameters, and the literal tensors of the model's files.
LocalTensors exported_tensors(Session& session);

SavePlan plan_checkpoint(Session& session, const FormatPlugin& format, const SavePlanOptions& options = {});
// The plan of an export: parameters in the layout of the model's files and the dtype of export.dtype, and the literal
// tensors; or, if exports_adapter(), those of the adapter in its files.
class QuantizedWeights;
// Quantized parameters are saved as values; with `quantized`, as components.
SavePlan plan_export(Session& session, const FormatPlugin& format, QuantizedWeights* quantized = nullptr,
                     const SavePlanOptions& options = {});
struct ScoreHead;
// The model's config with the dtype of the export, under the keys dtype and torch_dtype, and with
// "quantization_config" if `quantized`. With a `head`, that of a classifier.
std::string export_config(Session& session, bool quantized = false, const ScoreHead* head = nullptr);
// The model's config, with "quantization_config" if `quantized`. With a `head`, that of a classifier.
std::string checkpoint_config(Session& session, bool quantized, const ScoreHead* head = nullptr);

// False if there are too many shards to prove in a few seconds.
bool can_check_saving(Session& session);
// Plans the checkpoint and the export of a session without writing, so that an error that a save would throw hours
// later is thrown now. Returns the bytes of the largest header of a file that this rank writes.
uint64_t check_saving(Session& session);
// The bytes that checkpoint.async = "staged" copies on this rank at every save. With too many shards to plan a save,
// the bytes that this rank stores, which is an upper bound.
uint64_t staged_bytes(Session& session);
// The names by which DiskLayout::forms_in() finds the forms of the files in model.path; empty if these are the first.
std::vector<std::string> spelling_of_model(Session& session);
// Exports are from now on spelled so.
void export_as_spelled(Session& session, const std::vector<std::string>& spelling);
// Compares the export with the model directory from which the session starts; differences are counted warnings. An
// adapter's export has other tensors, and is not compared.
void compare_with_model(Session& session);
void compare_with_model(Session& session, const SavePlan& plan);

}  // namespace chassis
