// What a save will write, worked out from descriptors alone: no tensor is touched, no file either. Making one is the
// dry-save proof: exact cover, unique names, headers and offsets of every file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/hash.hpp"
#include "host/checkpoint/format_plugin.hpp"
#include "host/state/descriptor.hpp"
#include "host/state/disk_part.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// A tensor of the run and where it is on disk. One with components is stored as these, named disk_name + suffix; one
// that is tied to another is not stored.
struct SaveTensor {
  Descriptor descriptor;
  std::string disk_name;  // empty: the FQN
  Dtype disk_dtype = Dtype::f32;
  std::vector<DiskPart> parts = {};  // none: as it is, under disk_name

  // Stored as it is.
  static SaveTensor plain(Descriptor descriptor);
};

struct SavePlanOptions {
  MetadataPairs metadata;       // free text for headers that can carry it
  uint64_t max_file_bytes = 0;  // 0: the format's own limit
};

// What one rank writes of a box from one tensor: all of it, or a part if several ranks or tensors have it.
struct SavePart {
  uint32_t box = 0;
  Box region;  // logical elements of the tensor
  int rank = 0;
  uint32_t tensor = 0;  // of the plan
  uint32_t part = 0;    // of the tensor's parts, the one whose elements these are

  // Where the region lies in its box on disk, as a piece of the tensor.
  Piece place(const struct SavePlan& plan) const;
};

struct SavePlan {
  MeshShape mesh;
  std::string format;
  std::vector<SaveTensor> tensors;  // stored ones with their parts, composites expanded
  std::vector<DiskBox> boxes;       // contiguous on disk, in order of declaration
  std::vector<uint32_t> order;      // boxes by file and offset
  std::vector<SavePart> parts;      // of all ranks, in the order of writing
  FormatLayout layout;
  SavePlanOptions options;
  Crc checksum = Crc::k32c;  // of the format
  uint64_t num_disk_tensors = 0;
  uint64_t tensor_bytes = 0;
  uint64_t file_bytes = 0;  // headers and trailers too, without text files

  uint64_t bytes_of_rank(int rank) const;
  // The same on ranks that are about to write the same bytes to the same places.
  uint64_t fingerprint() const;
  uint64_t largest_header() const;
  // "291 tensors, 14.9 GiB in 4 files of format safetensors"
  std::string text() const;
};

// Throws before anything is written: with FQN, ranks and likely cause if the cover is not exact, with both FQNs if two
// tensors have one place on disk, with the format's own words if it can not hold a name.
SavePlan plan_save(std::vector<SaveTensor> tensors, const MeshShape& mesh, const FormatPlugin& format,
                   const SavePlanOptions& options = {});

}  // namespace chassis
