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
#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/manifest.hpp"
#include "host/checkpoint/part_stream.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/launch/world.hpp"

namespace chassis {

// A file that is copied into a checkpoint. It is open, so that it can be copied even after its directory has moved.
struct CopiedFile {
  std::shared_ptr<const File> file;
  std::string name;  // its name in the checkpoint
};

struct SaveRequest {
  std::string parent;  // the directory that will contain it
  std::string name;    // "step-000500"
  int64_t step = 0;
  bool resumable = false;
  Json about = Json::object();
  Json state = Json::object();
  LocalTensors tensors;
  PartSource source;  // yields the bytes instead of `tensors`
  // Additional files: config.json, resolved.toml …
  std::vector<std::pair<std::string, std::string>> text_files;
  std::vector<CopiedFile> carried_files;  // a copy has at most the permissions of its source
  // Permissions of the files: at most those of their source. The owner may always write files with tensors.
  unsigned mode = 0644;
  // Called on rank 0 after the checkpoint has been published.
  std::function<void()> on_published;
  // Called while parts are written, with the number of bytes of this rank's parts.
  std::function<void(uint64_t done, uint64_t total)> progress;
  // For tests: called between the stages of the commit; from "written" on by rank 0 alone.
  std::function<void(const char* stage)> on_stage;
};

struct SaveResult {
  std::string path;
  uint64_t num_bytes = 0;  // total of all files
  double seconds = 0;
  double sync_seconds = 0;   // of these: waiting for the disk at the end
  double stall_seconds = 0;  // time that the caller waited on this rank
  bool resumable = false;

  // "step-000500 saved: 1.2 GiB in 0.9 s (1.3 GB/s), stall 0.02 s, process peak 3.1 GiB, resumable"
  std::string line() const;
  Json json() const;
};

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

// Creates the directory, and throws a storage error with both numbers if its free space is less than files of
// `file_bytes` bytes need.
void check_space(uint64_t file_bytes, const std::string& parent);

// The files of a model directory or checkpoint that an export copies: config, generation_config, tokenizer, chat
// template. `except`: files that are given as text. Throws if one exists but cannot be read: a FIFO, a broken link, a
// file without permission.
std::vector<CopiedFile> files_to_copy(const std::string& model_directory, const std::set<std::string>& except = {});
// One such file. Throws if it cannot be read.
CopiedFile copied_file(const std::string& directory, const std::string& name);
// The mode for files made from this directory: group and others get the permissions that every file in it grants.
unsigned shared_file_mode(const std::string& directory);

}  // namespace chassis
