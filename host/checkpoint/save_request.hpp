// The request for a save, and its result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/part_stream.hpp"

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

}  // namespace chassis
