// Writes a model directory from the files of another one, in one process and through two buckets: no whole tensor is in
// memory. `chassis ckpt export`, `ckpt quantize` and `ckpt merge` are conversions, and a run with export.merge writes
// its export like one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/output_directory.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/save_request.hpp"
#include "host/config/weights_config.hpp"
#include "host/save/quantized_weights.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The sources of the tensors of plan_export(), which must outlive the writing.
struct ModelContents {
  QuantizedWeights* quantized = nullptr;  // quantized parameters are written as its components; NULL: as values
  PartSource values;                      // fills all other parameters
  std::function<void()> on_read = {};     // called after all parts were filled, before anything is published
};

// Writes the model of a session as `request` says, except for its tensors.
SaveResult write_model(Session& session, const ModelContents& contents, SaveRequest request, const BucketPair& buckets);

class Conversion {
 public:
  // Makes a session for the model, in which no parameter is allocated, and refuses directories that must not be
  // written, as OutputDirectory does. `verb` ("ckpt export") stands for the configuration's file in messages.
  // `num_scores`: that of SessionOptions.
  Conversion(const std::string& verb, const WeightsConfig& model, const std::vector<std::string>& plugin_path,
             std::string directory, const std::vector<std::string>& sources, int64_t num_scores = 0);

  Session& session() { return session_; }
  // Sets the place and the progress of `request`, and writes.
  SaveResult write(const ModelContents& contents, SaveRequest request);

 private:
  Session session_;
  const std::string directory_;
  const OutputDirectory place_;
};

}  // namespace chassis
