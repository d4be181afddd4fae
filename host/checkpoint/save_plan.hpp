// The content of a save, computed from descriptors alone, without tensors or files. Making a plan proves that the save
// is possible: exact cover, unique names, headers and offsets of every file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "host/base/hash.hpp"
#include "host/checkpoint/format_plugin.hpp"
#include "host/state/cover.hpp"
#include "host/state/descriptor.hpp"
#include "host/state/mesh_shape.hpp"
#include "host/state/stored_part.hpp"

namespace chassis {

// A tensor of the run and its place on disk. A tensor with components is stored as these, named disk_name + suffix; a
// tensor that is tied to another is not stored.
struct SaveTensor {
  Descriptor descriptor;
  std::string disk_name;  // empty: the FQN
  Dtype disk_dtype = Dtype::f32;
  std::vector<StoredPart> parts = {};  // empty: one part, unchanged, named disk_name

  // Stored unchanged, under its FQN.
  static SaveTensor plain(Descriptor descriptor);
};

inline constexpr int kAllRanks = -1;

struct SavePlanOptions {
  MetadataPairs metadata = {};  // free text for headers that can carry it
  uint64_t max_file_bytes = 0;  // 0: the format's own limit
  int rank = kAllRanks;         // the rank that saves by this plan; kAllRanks: one process writes for all ranks
  Prover prover = {};           // proves exact cover; by default this plan proves it for all tensors
};

// The elements of a box that one rank writes from one tensor: all, or a part if several ranks or tensors share the box.
struct SavePart {
  uint32_t box = 0;
  Box region;  // logical elements of the tensor
  int rank = 0;
  uint32_t tensor = 0;  // index into the plan's tensors
  uint32_t part = 0;    // index into the tensor's parts

  // The place of the region in its box on disk, as a piece of the tensor.
  Piece place(const struct SavePlan& plan) const;
};

// On each rank, a plan does not grow with the number of ranks: it has the rank's own parts, and its own files if the
// format stores the boxes of each rank in separate files. A format of whole tensors has one box for each tensor. Only a
// format that puts parts of several ranks into one file needs the boxes of all ranks.
struct SavePlan {
  MeshShape mesh;
  std::string format;
  std::vector<SaveTensor> tensors;  // stored ones with their parts, composites expanded
  bool own_files = false;           // boxes, order and layout are only those of options.rank
  std::vector<DiskBox> boxes;       // contiguous on disk, in order of declaration
  std::vector<uint32_t> order;      // boxes by file and offset
  std::vector<SavePart> parts;      // parts of options.rank, in writing order
  FormatLayout layout;
  SavePlanOptions options;
  Crc checksum = Crc::k32c;  // the format's checksum
  uint64_t num_disk_tensors = 0;
  uint64_t tensor_bytes = 0;  // total of all ranks
  uint64_t file_bytes = 0;    // size of the layout, with headers and trailers, without text files

  uint64_t bytes_of_rank(int rank) const;
  // Calls `visit` for the boxes of all ranks, in order of declaration, even if the plan holds only its own.
  void for_each_box(const std::function<void(const DiskBox&)>& visit) const;
  // Equal on ranks that plan to write the same tensors to the same places.
  uint64_t fingerprint() const;
  uint64_t largest_header() const;
  // "291 tensors, 14.9 GiB in 4 files of format safetensors"
  std::string text() const;
};

// Writes nothing. Throws an error with FQN, ranks and likely cause if the cover is not exact, with both FQNs if two
// tensors have the same place on disk, and with the format's message if the format cannot hold a name.
SavePlan plan_save(std::vector<SaveTensor> tensors, const MeshShape& mesh, const FormatPlugin& format,
                   const SavePlanOptions& options = {});

}  // namespace chassis
