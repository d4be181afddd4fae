// manifest.json: what a published checkpoint consists of. A directory without one is not a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/checkpoint/format_plugin.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

inline constexpr char kManifestName[] = "manifest.json";

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

  // Text with its own checksum; parse refuses it if one bit has changed.
  std::string dump() const;
  static CheckpointManifest parse(const std::string& text, const std::string& name);
  // Refuses a directory without one.
  static CheckpointManifest read(SourceDirectory& directory);
};

}  // namespace chassis
