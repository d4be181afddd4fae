// A save: streamed through two buckets into a hidden directory, checked off in a manifest, published by one rename.
// At every moment, whatever is killed, the previous checkpoint or the new one is there and whole.
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
#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/manifest.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/launch/world.hpp"

namespace chassis {

// A file that is copied into a checkpoint; open, so that it can be copied later wherever its directory is by then.
struct CarriedFile {
  std::shared_ptr<const File> file;
  std::string name;  // in the checkpoint
};

struct SaveRequest {
  std::string parent;  // the directory that gets it
  std::string name;    // "step-000500"
  int64_t step = 0;
  bool resumable = false;
  Json about = Json::object();
  Json state = Json::object();
  LocalTensors tensors;
  PartSource source;  // instead of tensors: where the bytes come from
  // Written beside the tensors: config.json, resolved.toml …
  std::vector<std::pair<std::string, std::string>> text_files;
  std::vector<CarriedFile> carried_files;  // each keeps at most the permissions that it has
  // Of the files: at most that of what they are made from. The owner may always write those that hold tensors.
  unsigned mode = 0644;
  // On rank 0, when the checkpoint is there for everybody to see.
  std::function<void()> on_published;
  // Called between the stages of the commit, for tests; from "written" on by rank 0 alone.
  std::function<void(const char* stage)> on_stage;
};

struct SaveResult {
  std::string path;
  uint64_t num_bytes = 0;  // of all files
  double seconds = 0;
  double sync_seconds = 0;   // of these, waiting for the disk at the end
  double stall_seconds = 0;  // the caller's, on this rank
  bool resumable = false;

  // "step-000500 published: 1.2 GiB in 0.9 s (1.3 GB/s), stall 0.02 s, process peak 3.1 GiB, resumable"
  std::string line() const;
};

class CheckpointWriter {
 public:
  // Both must outlive it.
  CheckpointWriter(const FormatPlugin& format, const BucketPair& buckets) : format_(format), buckets_(buckets) {}

  // [all-ranks] Each rank writes what it owns to its final place, and all return the same result. One process writes
  // for all ranks of the plan. Replaces a checkpoint of this name if this program wrote it. A failure on any rank is
  // one on all; what was published before stays as it is and the half-made one is removed.
  SaveResult save(const SavePlan& plan, const SaveRequest& request, World& world) const;
  SaveResult save(const SavePlan& plan, const SaveRequest& request) const;  // in one process

 private:
  const FormatPlugin& format_;
  const BucketPair& buckets_;
};

// Makes the directory and compares what is free there with what the plan takes, before a tensor is touched. Throws a
// storage error that names both numbers.
void check_space(const SavePlan& plan, const std::string& parent);

// The files of a model directory or checkpoint that an export takes along: config, generation_config, tokenizer, chat
// template. `except`: those that are given as text. Throws for one that is there and cannot be read: a FIFO, a link
// that leads nowhere, one without permission.
std::vector<CarriedFile> files_to_carry(const std::string& model_directory, const std::set<std::string>& except = {});
// For what is made of this directory: group and others may do with it what they may with every file here.
unsigned mode_like(const std::string& directory);

}  // namespace chassis
