// Inspects checkpoints: verifies every byte, describes one, compares two.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/checkpoint_root.hpp"

namespace chassis {

struct VerifyResult {
  uint64_t num_bytes = 0;
  uint64_t num_files = 0;
  uint64_t num_tensors = 0;
  std::vector<std::string> defects;  // "sharded/…: tensor 'x' is damaged: …"

  bool ok() const { return defects.empty(); }
};

// Reads every byte of every file in the manifest once. Compares sizes and checksums of files, and names the damaged
// tensors of a damaged file. Needs no format plugin. Throws if there is no readable manifest.
VerifyResult verify_checkpoint(const std::string& path, const BucketPair& buckets,
                               const std::function<void(uint64_t done, uint64_t total)>& progress = {});

// Compares the files that hold no tensors, such as config.json and tokenizer.json, with the manifest of a directory
// that this program wrote; tensors are compared while they are read. Call it before anything in the directory is used:
// otherwise damage would be trained on, and saved again with a new, matching checksum. Throws DamagedCheckpoint, which
// names the file and both checksums. Does nothing for other directories (`manifest` may be NULL).
void compare_with_manifest(const std::string& path, const CheckpointManifest* manifest);
// The same for any path; reads its manifest, if it has one.
void compare_with_manifest(const std::string& path);

// Lines for the user: step, format, mesh, sizes, state, files, and on request tensors.
std::vector<std::string> describe_checkpoint(const std::string& path, bool with_tensors);
// The same as JSON; sizes in bytes.
Json checkpoint_json(const std::string& path, bool with_tensors);

struct TensorDifference {
  enum class Kind { kOnlyFirst, kOnlySecond, kForm, kContents, kNotCompared };
  Kind kind = Kind::kContents;
  std::string name;
  std::string first, second;  // dtype and shape, "f32[37, 8]"; empty if it is absent

  std::string line() const;  // "! embed.weight f32[37, 8] → f32[38, 8]"
};
struct CheckpointDiff {
  struct Side {
    std::string path;
    int64_t step = 0, num_tensors = 0;
    uint64_t num_bytes = 0;

    std::string title() const;  // "out/checkpoints/step-000500: step 500, 42 tensors, 18 MiB"
  };
  Side first, second;
  std::vector<TensorDifference> tensors;
};
// Compares manifests: finds each tensor that only one of them has, or whose shape, dtype or contents differ.
CheckpointDiff diff_checkpoints(const std::string& path_a, const std::string& path_b);
Json diff_json(const CheckpointDiff& diff);

// Lines of `ckpt ls`, aligned.
std::vector<std::string> checkpoint_table(const std::vector<CheckpointInfo>& checkpoints);
Json checkpoint_table_json(const std::vector<CheckpointInfo>& checkpoints);

}  // namespace chassis
