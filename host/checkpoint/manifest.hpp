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

// What is on disk is not what was written there: checksums or sizes say otherwise.
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
  Json about;              // config hash, plugins, versions: for people
  Json state;              // what else a resumed run needs: random state, data cursor, schedule
  std::vector<FileEntry> files;
  std::vector<BoxEntry> boxes;  // in order of declaration

  uint64_t num_bytes() const;  // of all files
  int64_t num_tensors() const;
  // By file, each from its first byte to its last. Throws a storage error if two boxes overlap.
  std::vector<std::vector<Extent>> extents() const;

  // Text with its own checksum; parse throws DamagedCheckpoint if one bit has changed.
  std::string dump() const;
  static CheckpointManifest parse(const std::string& text, const std::string& name);
  // Refuses a directory without one.
  static CheckpointManifest read(SourceDirectory& directory);
};

}  // namespace chassis
