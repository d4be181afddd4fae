// A directory opened for a session: its reader, and where it has the session's parameters. Loads and conversions begin
// here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/save/model_directory.hpp"
#include "host/save/quantized_weights.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The comparisons that opening a directory makes. kFacts: files without tensors with their checksums in the manifest,
// and the shapes of tied copies; reads no weights. kAll: also the values of tied copies.
enum class OpenChecks { kNone, kFacts, kAll };

class OpenedModel {
 public:
  // Opens a checkpoint, model directory or, if `is_adapter`, the files of an adapter. Throws a storage error if it is
  // none, or if files disagree with each other or with the model. The session must outlive it.
  OpenedModel(Session& session, const std::string& path, bool is_adapter = false, OpenChecks checks = OpenChecks::kAll);
  OpenedModel(const OpenedModel&) = delete;
  OpenedModel& operator=(const OpenedModel&) = delete;

  const std::string& path() const { return reader_->path(); }
  CheckpointReader& reader() const { return *reader_; }
  const ModelDirectory& directory() const { return directory_; }

  // Whether loading goes on without a tensor: the head that an objective added.
  bool may_be_absent(const Descriptor& tensor) const;

  // The functions below are for conversions, in one process. From now on, quantized parameters are components, read
  // from this directory or made from its values.
  void quantize() { quantized_.emplace(session_, *reader_, directory_); }
  // NULL before quantize().
  QuantizedWeights* quantized() { return quantized_ ? &*quantized_ : nullptr; }
  // True if the directory has components of a parameter, and quantize() was called.
  bool has_components(const Parameter& p) const { return quantized_ && quantized_->is_stored(p); }
  // Throws Misfit if the directory has other tensors than the session expects there: values, and after quantize()
  // components where the directory has them.
  void check();
  // The values of parameters that are not quantized; they must be finite. This object must outlive it.
  PartSource values();

 private:
  Session& session_;
  std::unique_ptr<CheckpointReader> reader_;
  ModelDirectory directory_;
  std::optional<QuantizedWeights> quantized_;
};

}  // namespace chassis
