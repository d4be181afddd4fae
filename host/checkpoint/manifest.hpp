// manifest.json: what a published checkpoint consists of. A directory without one is not a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/checkpoint/format_plugin.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

inline constexpr char kManifestName[] = "manifest.json";

// In "about", under "names": tensors are called as the parameters of the run, not as in a model directory.
inline constexpr char kParameterNames[] = "parameters";

// What was read is not what was written there: checksums, sizes or what they say are wrong. What cannot be read is a
// storage error of another sort: it may be there again.
class DamagedCheckpoint : public Error {
 public:
  explicit DamagedCheckpoint(std::string message) : Error(ExitCode::kStorage, std::move(message)) {}
};

struct CheckpointManifest {
  struct FileEntry {
    std::string path;
    uint64_t num_bytes = 0;
    uint32_t crc32c = 0;
  };
  struct BoxEntry {
    DiskBox box;
    DiskPlace place;  // file is an index into files
    uint32_t crc32c = 0;
  };
  // A stretch of a file: a box, or what lies around boxes.
  struct Extent {
    uint64_t begin = 0, end = 0;
    int64_t box = -1;  // index into boxes; -1: none
  };

  int64_t step = 0;
  std::string format;
  std::string created;  // UTC, "2026-01-31T12:00:00Z"
  MeshShape mesh;
  bool resumable = false;  // false: weights only
  Json about;              // config hash, plugins, versions: for people; an object, as state
  Json state;              // what else a resumed run needs: random state, data cursor, schedule
  std::vector<FileEntry> files;
  std::vector<BoxEntry> boxes;  // in order of declaration

  // Saved by a training run to go on from: neither a model directory for others, nor imported.
  bool is_of_a_run() const;
  uint64_t num_bytes() const;  // of all files
  int64_t num_tensors() const;
  // By file, each from its first byte to its last. Throws DamagedCheckpoint if two boxes overlap.
  std::vector<std::vector<Extent>> extents() const;

  // Text with its own checksum; parse throws DamagedCheckpoint if one bit has changed, or if it makes no sense.
  std::string dump() const;
  static CheckpointManifest parse(const std::string& text, const std::string& name);
  // Refuses a directory without one.
  static CheckpointManifest read(SourceDirectory& directory);
};

bool is_of_a_run(bool resumable, const Json& about);

}  // namespace chassis
