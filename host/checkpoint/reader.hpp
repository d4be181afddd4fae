// A checkpoint or model directory to load from: lists its tensors, and reads the byte ranges that a rank holds into its
// tensors. Trusts no header, and holds no tensor in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/launch/world.hpp"
#include "host/state/stored_part.hpp"

namespace chassis {

struct DiskTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape global_shape;
  std::vector<uint32_t> boxes;  // indices into the scan
};

struct LoadTensor {
  Descriptor descriptor;
  std::string disk_name;             // empty: the FQN
  std::vector<StoredPart> parts = {};  // empty: one part, unchanged, named disk_name
  // If set, there is no local tensor: this receives the elements that the rank holds as f32, in the rank's order, in
  // parts that begin at multiples of `take_block` elements. `begin` counts the elements of the rank.
  std::function<void(int64_t begin, std::span<const float> values)> take = {};
  int64_t take_block = 1;

  std::vector<StoredPart> all_parts() const;
};

struct LoadOptions {
  int rank = 0;
  // Reads only what this rank owns among its replicas, so that all ranks together read every byte once. The caller
  // sends it to the other holders (host/checkpoint/reshard.hpp).
  bool owned_only = false;
  // True for a name on disk that may be ignored: a tied copy, a stored buffer, the optimizer state of a model to
  // export.
  std::function<bool(const std::string& disk_name)> skip;
  // True for a tensor of the model that may be missing, such as that of a new head; it keeps its values.
  std::function<bool(const Descriptor& tensor)> optional;
  // True for a tensor whose bytes on disk count in content_hash().
  std::function<bool(const Descriptor& tensor)> hashed;
  size_t max_listed = 8;  // lines in the error message for each kind of mismatch
  std::function<void(uint64_t bytes_done, uint64_t bytes_total)> progress;
};

// The part of a box that this rank read, with its contribution to the box's checksum; other ranks may have read the
// rest.
struct PartRead {
  uint32_t box = 0;  // index into the scan
  uint32_t remainder = 0;
  uint64_t num_bytes = 0;
};

struct LoadResult {
  uint64_t num_bytes = 0;  // bytes read
  uint64_t num_tensors = 0;
  uint64_t verified_bytes = 0;      // of these: in boxes that were read whole, with the manifest's checksum
  std::vector<PartRead> parts;      // the other boxes, for verify_parts(); empty without a manifest
  std::vector<PartRead> hashed;     // parts of the tensors that count in content_hash()
  std::vector<std::string> absent;  // FQNs of optional tensors that are missing on disk
};

// Totals over all ranks.
struct ReadBytes {
  uint64_t num_bytes = 0;
  uint64_t num_verified = 0;  // of these: compared with the manifest's checksums

  // "1.2 GiB, all of it compared with its checksums"
  std::string text() const;
};

// A storage error: the tensors of a checkpoint are not the expected ones.
class Misfit : public Error {
 public:
  explicit Misfit(std::string message) : Error(ExitCode::kStorage, std::move(message)) {}
};

class CheckpointReader {
 public:
  // Scans the directory and proves that the boxes of every tensor cover it. With a manifest, compares every file that
  // holds tensors, except for the tensors' bytes: throws DamagedCheckpoint if sizes or headers differ from the
  // manifest, or if the format cannot parse them.
  CheckpointReader(const std::string& path, const FormatPlugin& format);
  // `scan` was made by another process (host/checkpoint/isolated_scan.hpp).
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
  // Calls check(), then fills the tensors that `local` returns, except tied ones. Reads only the byte ranges that this
  // rank holds, in the order of the files, and casts them; padding is not changed. Compares every box that is read
  // whole with the manifest's checksum, if there is one: throws DamagedCheckpoint, which names tensor, file and both
  // checksums, after a part of the tensors has been filled.
  LoadResult load(std::span<const LoadTensor> tensors, const MeshShape& mesh, const BucketPair& buckets,
                  const LocalTensors& local, const LoadOptions& options = {});
  // [all-ranks] Call after load() with `owned_only` on all ranks, so that no byte was read twice. Compares the boxes
  // that ranks read in parts, as load() does, with one outcome on all ranks. A box that the ranks together did not read
  // whole counts as read, not as verified.
  ReadBytes verify_parts(const LoadResult& result, World& world) const;
  // [all-ranks] A hash of the bytes that `hashed` tensors have on disk, with their names, dtypes and shapes. Does not
  // depend on the mesh and number of ranks that read them, nor on the files that hold them. Reads nothing: load() has
  // computed the checksums. Call it under the conditions of verify_parts().
  std::string content_hash(const std::vector<PartRead>& hashed, World& world) const;
  // Reads regions of tensors, and compares every box that has been read whole with its checksum.
  class Values;
  // A source for a save by one process: reads tensors of this directory, never a whole one into memory, casts them and
  // compares them with the manifest's checksums as load() does. `parts` returns where a tensor is in this directory.
  // The tensors must have passed check(), and this reader must outlive the source. With `finite`, throws a storage
  // error that names the tensor if a value is NaN or infinite, and a numeric error if the cast makes it infinite.
  PartSource source(std::function<std::vector<StoredPart>(const Descriptor& tensor)> parts, bool finite = false);
  // A CRC of a tensor of this shape as f32: equal for tensors with the same elements, whatever their dtypes. `parts`
  // says where they are in this directory.
  uint32_t checksum(const Shape& shape, std::span<const StoredPart> parts);
  PartSource source();  // tensors are stored unchanged, under their FQNs

 private:
  void scan(const FormatPlugin& format);
  void index_tensors();
  // Throws DamagedCheckpoint.
  [[noreturn]] void throw_mismatch(const std::string& what) const;
  void compare_files();
  void compare_boxes();
  void prove_boxes() const;
  struct PartToLoad;
  void load_part(const PartToLoad& wanted, const MeshShape& mesh, const BucketPair& buckets, const LocalTensors& local,
                 const LoadOptions& options, LoadResult& result);
  // Compares a box that was read whole with the manifest; notes a part of one for verify_parts().
  void verify_or_keep(const PartRead& read, LoadResult& result) const;
  class BoxCopier;
  void load_values(const LoadTensor& tensor, Values& values, const MeshShape& mesh, const BucketPair& buckets,
                   const LoadOptions& options);
  // `crc`: that of a box that was read whole. Throws DamagedCheckpoint.
  void compare_checksum(uint32_t box, uint32_t crc) const;
  std::string damage_of(uint32_t box, uint32_t crc) const;
  // Adds what all ranks read to `total`, and returns the first damage, or "".
  std::string damage_of_parts(const std::vector<std::string>& all, ReadBytes& total) const;

  std::unique_ptr<SourceDirectory> directory_;
  FormatScan scan_;
  std::vector<DiskTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::optional<CheckpointManifest> manifest_;
  std::vector<uint32_t> manifest_crc_;  // by box of the scan; empty without a manifest
};

class CheckpointReader::Values {
 public:
  // The reader must outlive it.
  explicit Values(CheckpointReader& reader);
  ~Values();
  // Fills `out`, row-major, with a region of a tensor. `parts` says where the tensor is in the directory.
  void read(std::span<const StoredPart> parts, const Box& region, std::span<float> out, bool hashed = false);
  // The parts that read() has read with `hashed`, for content_hash().
  std::vector<PartRead> hashed() const;
  // Adds the bytes read since the last call.
  void add_to(LoadResult& result);
  // Adds the boxes that were read in part, and hashed().
  void add_parts_to(LoadResult& result) const;

 private:
  std::unique_ptr<BoxCopier> copier_;
};

// One line for each name, shape or dtype that differs between a save plan and a directory. Compares an export with the
// model it came from, before training starts.
std::vector<std::string> compare_with_directory(const SavePlan& plan, const CheckpointReader& directory);

}  // namespace chassis
