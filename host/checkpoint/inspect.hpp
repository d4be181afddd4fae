// Looking at checkpoints from outside: verification of every byte, a description, the difference of two.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/manifest.hpp"

namespace chassis {

struct VerifyResult {
  uint64_t num_bytes = 0;
  uint64_t num_files = 0;
  uint64_t num_tensors = 0;
  std::vector<std::string> defects;  // "sharded/…: tensor 'x' is damaged: …"

  bool ok() const { return defects.empty(); }
};

// Reads every byte of every file in the manifest once: sizes, checksums of files, of tensors where a file is damaged.
// Needs no format plugin. Throws if there is no readable manifest.
VerifyResult verify_checkpoint(const std::string& path, const BucketPair& buckets,
                               const std::function<void(uint64_t done, uint64_t total)>& progress = {});

// Of a checkpoint to resume from: the files that hold no tensor, such as config.json and resolved.toml, which no load
// compares. Throws DamagedCheckpoint; does nothing for other directories (`manifest`: NULL if there is none), whose
// files people may edit.
void verify_carried_files(const std::string& path, const CheckpointManifest* manifest);

// Lines for people: step, format, mesh, sizes, state, files, tensors if asked for.
std::vector<std::string> describe_checkpoint(const std::string& path, bool with_tensors);

// "out/checkpoints/step-000500: step 500, 42 tensors, 18 MiB"
std::string title_of_checkpoint(const std::string& path);
// By manifest: tensors in one only, of another shape or dtype, of other contents. One line each.
std::vector<std::string> diff_checkpoints(const std::string& path_a, const std::string& path_b);

// Lines of `ckpt ls`, aligned.
std::vector<std::string> checkpoint_table(const std::vector<CheckpointInfo>& checkpoints);

}  // namespace chassis
