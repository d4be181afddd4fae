// `chassis ckpt export`: a checkpoint as a model directory.
#pragma once

#include <string>
#include <vector>

#include "host/checkpoint/save_request.hpp"

namespace chassis {

struct ExportRequest {
  std::string checkpoint;  // or model directory
  std::string directory;   // created
  std::string dtype = "auto";
  std::string format = {};  // empty: the default of export.plugin
  std::string base = {};    // its tokenizer and other files are copied; empty: those of the checkpoint
  std::string quant = {};   // the plugin if weights are quantized, which stay so; empty: the installed one
  std::vector<std::string> plugin_path = {};
};
// Exports a checkpoint as a model directory, or its adapter in PEFT's format, in one process and through two buckets;
// no whole tensor is in memory. Of the settings in the checkpoint it uses only config.json: it takes no plugin and no
// path from there.
SaveResult export_checkpoint(const ExportRequest& request);

}  // namespace chassis
