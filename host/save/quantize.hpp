// Quantized models as files: `chassis ckpt quantize`, and what other verbs need to read them.
#pragma once

#include <string>
#include <vector>

#include "host/checkpoint/writer.hpp"

namespace chassis {

// Whether the config.json of a model directory or checkpoint says that its files hold quantized weights.
bool has_quantized_weights(const std::string& directory);
// The quant plugin: `given`, or if empty the only installed one. Throws a config error that lists them if there are
// several.
std::string quant_plugin(const std::string& given, const std::vector<std::string>& plugin_path);

struct QuantizeRequest {
  std::string model;                      // a model directory, not quantized
  std::string directory;                  // created
  std::string dtype = "auto";             // for what is not quantized
  std::string format = {};                // empty: the default of export.plugin
  std::string quant = {};                 // the plugin; empty: the installed one
  std::vector<std::string> options = {};  // "quant.double_quant=true"
  std::vector<std::string> plugin_path = {};
};
// Writes a model directory with the linears quantized, in one process. Of the model, only two buckets and the
// components of one parameter are in memory.
SaveResult quantize_model(const QuantizeRequest& request);

}  // namespace chassis
