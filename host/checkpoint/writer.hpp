// A save: streams through two buckets into a hidden directory, lists its files in a manifest, and publishes by one
// rename. The previous or the new checkpoint is complete at every moment, even if processes are killed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/checkpoint/save_request.hpp"
#include "host/launch/world.hpp"

namespace chassis {

class CheckpointWriter {
 public:
  // Both must outlive it.
  CheckpointWriter(const FormatPlugin& format, const BucketPair& buckets) : format_(format), buckets_(buckets) {}

  // [all-ranks] Each rank writes what it owns to its final place, and all return the same result. A single process
  // writes for all ranks of the plan. Replaces a checkpoint of this name if this program wrote it. If one rank fails,
  // all throw; earlier checkpoints are unchanged and the incomplete one is removed.
  SaveResult save(const SavePlan& plan, const SaveRequest& request, World& world) const;
  SaveResult save(const SavePlan& plan, const SaveRequest& request) const;  // in one process

 private:
  const FormatPlugin& format_;
  const BucketPair& buckets_;
};

// The files of a model directory or checkpoint that an export copies: config, generation_config, tokenizer, chat
// template. `except`: files that are given as text. Throws if one exists but cannot be read: a FIFO, a broken link, a
// file without permission.
std::vector<CopiedFile> files_to_copy(const std::string& model_directory, const std::set<std::string>& except = {});
// One such file. Throws if it cannot be read.
CopiedFile copied_file(const std::string& directory, const std::string& name);
// The mode for files made from this directory: group and others get the permissions that every file in it grants.
unsigned shared_file_mode(const std::string& directory);

}  // namespace chassis
