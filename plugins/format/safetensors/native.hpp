// Shards as PyTorch's DCP HuggingFaceStorageWriter makes them: sharded/shard-00001-model-00001-of-00001.safetensors,
// one box per tensor and file, whose place in the whole is in the header's metadata.
#pragma once

#include "layout.hpp"

namespace safetensors {

SaveLayout native_layout(const chassis_save_request_t& request);
void native_scan(const Source& source, const ScanSink& sink);

}  // namespace safetensors
