// Merges what a run has trained into its base model: branches of an adapter, and parameters trained whole.
#pragma once

#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/session/session.hpp"

namespace chassis {

// Writes the model of the session as plan_export() says: fp32 values of the directory `base`, changed by the parameters
// in `trained` (an adapter's directory or a checkpoint), and rounded once. Quantized weights of `base` are dequantized,
// one parameter at a time. Runs in one process, through the two buckets; of `trained`, only the parameters that an
// adapter added are whole in memory. A checkpoint that has all parameters is its own base. Throws an error that names
// the tensor if a value is not finite or overflows the dtype of the export.
SaveResult merge_weights(Session& session, const std::string& base, const std::string& trained, SaveRequest request,
                         const BucketPair& buckets);

struct MergeRequest {
  std::string trained;    // an adapter's directory or a checkpoint
  std::string base = {};  // empty: what `trained` names
  std::string directory;  // created
  std::string dtype = "auto";
  std::string format = {};   // empty: the default of export.plugin
  std::string adapter = {};  // the plugin; empty: what adapter_config.json says
  std::string quant = {};    // the plugin, if the base is quantized; empty: the installed one
  bool keep_quantized = false;  // quantized again as `base` is, instead of rounded
  std::vector<std::string> plugin_path = {};
};
// The same as a conversion of files.
SaveResult merge_checkpoint(const MergeRequest& request);

}  // namespace chassis
