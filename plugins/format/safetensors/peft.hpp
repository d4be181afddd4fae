// Adapters as PEFT saves them: one file adapter_model.safetensors. Names in files have a prefix that names in the
// program lack.
#pragma once

#include "layout.hpp"

namespace safetensors {

SaveLayout peft_layout(const chassis_save_request_t& request);
void peft_scan(const Source& source, const ScanSink& sink);

}  // namespace safetensors
