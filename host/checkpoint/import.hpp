// Imports checkpoints of other systems: streams the tensors that a scan found into a model directory, or into a
// checkpoint to resume from, through two buckets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/writer.hpp"

namespace chassis {

struct ImportRequest {
  std::string directory;     // created; replaced only if this program wrote it
  bool resumable = false;    // with the optimizer's states, for a run with the source's parameter names
  Dtype dtype = Dtype::f32;  // for floating-point weights; states keep their dtype
  std::string base = {};     // a model directory whose config and tokenizer are copied; may be empty
  std::function<void(uint64_t done, uint64_t total)> progress = {};  // bytes written
};

// If the result is a model directory, the optimizer states are left out, with a counted warning.
SaveResult import_checkpoint(CheckpointReader& source, const FormatPlugin& format, const ImportRequest& request,
                             const BucketPair& buckets);

}  // namespace chassis
