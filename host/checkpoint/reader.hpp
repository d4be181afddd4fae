// A checkpoint or model directory to load from: its tensors by name, and the owned byte ranges of them brought to where
// they belong. No header is trusted, no link followed, no tensor held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/base/error.hpp"
#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/manifest.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/launch/world.hpp"
#include "host/state/disk_part.hpp"

namespace chassis {

struct DiskTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape global_shape;
  std::vector<uint32_t> boxes;  // indices into the scan
};

struct LoadTensor {
  Descriptor descriptor;
  std::string disk_name;  // empty: the FQN
  std::vector<DiskPart> parts = {};  // none: as it is, under disk_name

  std::vector<DiskPart> all_parts() const;
};

struct LoadOptions {
  int rank = 0;
  // Only what this rank owns among its replicas is read, so that all ranks together read every byte once; the caller
  // brings it to the others (host/checkpoint/reshard.hpp).
  bool owned_only = false;
  // True for a name on disk that nobody misses: a tied copy, a stored buffer, the optimizer state of a model to export.
  std::function<bool(const std::string& disk_name)> skip;
  // Tensors of the model that need not be there, such as those of a new head; they stay as they are.
  std::function<bool(const Descriptor& tensor)> optional;
  size_t max_listed = 8;  // of each sort of misfit in the message
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress;
};

// A box of which this rank has read a part, and others the rest: what the part adds to the box's checksum.
struct PartRead {
  uint32_t box = 0;  // of the scan
  uint32_t remainder = 0;
  uint64_t num_bytes = 0;
};

struct LoadResult {
  uint64_t num_bytes = 0;  // read
  uint64_t num_tensors = 0;
  uint64_t verified_bytes = 0;      // of these: in boxes that were read whole and have the manifest's checksum
  std::vector<PartRead> parts;      // the others, for verify_parts(); none where no manifest is
  std::vector<std::string> absent;  // FQNs of optional tensors that were not there
};

// Of all ranks.
struct ReadBytes {
  uint64_t num_bytes = 0;
  uint64_t num_verified = 0;  // of these: compared with the manifest's checksums

  // "1.2 GiB, all of it compared with its checksums"
  std::string text() const;
};

class CheckpointReader {
 public:
  // Scans the directory and proves that the boxes of every tensor cover it. With a manifest it compares every file that
  // holds tensors, but for their bytes: DamagedCheckpoint if sizes, headers or what they say are not as written, or can
  // not be read at all.
  CheckpointReader(const std::string& path, const FormatPlugin& format);
  // What another process has found in it.
  CheckpointReader(std::unique_ptr<SourceDirectory> directory, FormatScan scan);
  ~CheckpointReader();

  const std::string& path() const;
  const std::vector<DiskTensor>& tensors() const { return tensors_; }
  const DiskTensor* find(const std::string& name) const;
  const MetadataPairs& metadata() const { return scan_.metadata; }
  // NULL for a directory that this program did not write.
  const CheckpointManifest* manifest() const { return manifest_ ? &*manifest_ : nullptr; }

  // Throws one storage error that lists missing, unexpected and misshaped tensors by name, with both shapes.
  void check(std::span<const LoadTensor> tensors, const LoadOptions& options = {}) const;
  // Checks, then fills what `local` gives for every tensor that is not tied: only the byte ranges that this rank holds
  // are read, in the order in which they lie in the files, cast on the way; padding is left alone. Where the manifest
  // has the checksum of a box that is read whole, it is compared: DamagedCheckpoint, with a part of the tensors filled,
  // names tensor, file and both checksums.
  LoadResult load(std::span<const LoadTensor> tensors, const MeshShape& mesh, const BucketPair& buckets,
                  const LocalTensors& local, const LoadOptions& options = {});
  // [all-ranks] After load() on all of them, by owners only, so that none has read what another has. Boxes that ranks
  // have read in parts are compared as in load(), with one outcome on all. A box of which somebody read a part, but
  // together they did not read it all, counts as read, not as verified.
  ReadBytes verify_parts(const LoadResult& result, World& world) const;
  // The bytes of tensors here as the source of a save by one process, never a whole tensor of them in memory, cast on
  // the way and compared with the manifest's checksums as in load(). `parts` says where a tensor is here; the
  // tensors have passed check(). This reader must outlive it.
  PartSource source(std::function<std::vector<DiskPart>(const Descriptor& tensor)> parts);
  PartSource source();  // as they are, under their FQNs

 private:
  void scan(const FormatPlugin& format);
  void index_tensors();
  // With the manifest: throws DamagedCheckpoint.
  [[noreturn]] void differs(const std::string& what) const;
  void compare_files();
  void compare_boxes();
  void prove_boxes() const;
  struct Wanted;
  void load_part(const Wanted& wanted, const MeshShape& mesh, const BucketPair& buckets, const LocalTensors& local,
                 const LoadOptions& options, LoadResult& result);
  class BoxCopier;
  // Of a box that was read whole.
  void compare_checksum(uint32_t box, uint32_t crc) const;
  std::string damage_of(uint32_t box, uint32_t crc) const;
  // From what all ranks have read; the first damage, or "".
  std::string damage_of_parts(const std::vector<std::string>& all, ReadBytes& total) const;

  std::unique_ptr<SourceDirectory> directory_;
  FormatScan scan_;
  std::vector<DiskTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::optional<CheckpointManifest> manifest_;
  std::vector<uint32_t> manifest_crc_;  // by box of the scan
};

// What differs between what a plan would write and what a directory holds: names, shapes, dtypes. One line each; empty
// if nothing does. Compares an export with the model it came from before anything is trained.
std::vector<std::string> compare_with_directory(const SavePlan& plan, const CheckpointReader& directory);

}  // namespace chassis
