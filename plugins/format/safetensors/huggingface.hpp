// Model directories of the Hugging Face Hub: model.safetensors, or model-00001-of-0000N.safetensors with an index.
#pragma once

#include "layout.hpp"

namespace safetensors {

SaveLayout huggingface_layout(const chassis_save_request_t& request);
void huggingface_scan(const Source& source, const ScanSink& sink);

}  // namespace safetensors
