// Shards in the format of PyTorch's DCP HuggingFaceStorageWriter: sharded/shard-00001-model-00001-of-00001.safetensors,
// one box per tensor and file. The header's metadata holds the offset of each box in its tensor.
#pragma once

#include "layout.hpp"

namespace safetensors {

SaveLayout native_layout(const chassis_save_request_t& request);
void native_scan(const Source& source, const ScanSink& sink);

}  // namespace safetensors
