// Checkpoints of other systems made ours: what a scan has found, streamed into a model directory or into a checkpoint
// to resume from, through two buckets.
#pragma once

#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/writer.hpp"

namespace chassis {

struct ImportRequest {
  std::string directory;   // is made; replaced only if this program wrote it
  bool resumable = false;  // with the optimizer's states, for a run whose parameters have the names that the source has
  Dtype dtype = Dtype::f32;  // of weights that are floats; states stay as they are
  std::string base = {};     // a model directory whose config and tokenizer are taken along; may be empty
};

// What is left out is a counted warning: states of the optimizer if the result is a model directory.
SaveResult import_checkpoint(CheckpointReader& source, const FormatPlugin& format, const ImportRequest& request,
                             const BucketPair& buckets);

}  // namespace chassis
