// manifest.json: the files and tensors of a published checkpoint. A directory without one is not a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/checkpoint/disk_box.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// The value of "names" in "about" if tensors have the names of the run's parameters, not those of a model directory.
inline constexpr char kParameterNames[] = "parameters";

// A checkpoint was read, and its checksums, sizes or contents are wrong. A checkpoint that cannot be read is a plain
// storage error: it may be readable later.
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
  // A range of bytes of a file: a box, or the bytes between boxes.
  struct Extent {
    uint64_t begin = 0, end = 0;
    int64_t box = -1;  // index into boxes; -1: none
  };

  int64_t step = 0;
  std::string format;
  std::string created;  // UTC, "2026-01-31T12:00:00Z"
  MeshShape mesh;
  bool resumable = false;  // false: weights only
  Json about;              // an object for the user: config hash, plugins, versions
  Json state;              // an object for a resumed run: random state, data position, schedule
  std::vector<FileEntry> files;
  std::vector<BoxEntry> boxes;  // in order of declaration

  // Saved by a training run to resume from: neither an exported model directory, nor imported.
  bool is_run_checkpoint() const;
  uint64_t num_bytes() const;  // total of all files
  int64_t num_tensors() const;
  // For each file, its extents from the first byte to the last. Throws DamagedCheckpoint if two boxes overlap.
  std::vector<std::vector<Extent>> extents() const;

  // Text with its own checksum. parse() throws DamagedCheckpoint if a bit has changed or a value is not valid.
  std::string dump() const;
  static CheckpointManifest parse(const std::string& text, const std::string& name);
  // Throws a storage error if the directory has none.
  static CheckpointManifest read(SourceDirectory& directory);
};

// Writes the text of CheckpointManifest::dump() box by box.
class ManifestText {
 public:
  using Append = std::function<void(std::string_view text)>;
  // Writes everything in `head` except its boxes.
  ManifestText(const CheckpointManifest& head, Append append);
  void add(const CheckpointManifest::BoxEntry& entry);
  // Ends the text. Returns its checksum, to be put in place of the zeros at byte checksum_at().
  std::string finish();
  static uint64_t checksum_at();

 private:
  void append(std::string_view text);

  const Append append_;
  uint32_t crc32c_ = 0;
  bool is_first_ = true;
};

bool is_run_checkpoint(bool resumable, const Json& about);

}  // namespace chassis
