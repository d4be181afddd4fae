// Streams the parts that a rank owns through its two buckets to their places in the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "host/base/file.hpp"
#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/local_tensors.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/state/intersect.hpp"

namespace chassis {

// The parts that a process writes.
struct PartOwner {
  int rank = 0;
  bool writes_all = false;  // one process writes for every rank of the plan

  bool writes(const SavePart& part) const { return writes_all || part.rank == rank; }
};

// Returns memory for bytes [at, at + num_bytes) of a part's box on disk. Both numbers are multiples of the element
// size. The memory may be shorter than requested, but is not empty; the caller fills it before the next call.
using ReserveBytes = std::function<std::span<std::byte>(uint64_t at, uint64_t num_bytes)>;
// Copies bytes into the room for them.
void copy_into(const ReserveBytes& room, uint64_t at, std::span<const std::byte> bytes);
// Requests room for every byte of the part once, in any order, and fills it.
using PartSource = std::function<void(const SavePlan& plan, const SavePart& part, const ReserveBytes& room)>;
// Casts elements of a tensor's storage, which is one-dimensional, and copies them into the room for them.
void cast_into(const ReserveBytes& room, const Tensor& flat, const Copy& copy, Dtype dtype);
// Names the tensor in numeric errors of a source, such as values that overflow the dtype on disk.
PartSource naming_tensors(PartSource source);
// The parts of tensors in memory, cast to the dtype on disk.
PartSource from_tensors(LocalTensors tensors);

// For each file of the plan: whether this owner writes a part of it.
std::vector<bool> files_with_parts(const SavePlan& plan, const PartOwner& owner);

// The contribution of a part to the checksums of its box: CRC32C, and the format's checksum if that is another kind.
struct PartRemainders {
  uint32_t crc32c = 0;
  uint32_t of_format = 0;
};

// Writes every part of this owner, in the plan's order, and returns their remainders in the same order. Those of
// `files` that hold parts must be open.
std::vector<PartRemainders> stream_parts(
    const SavePlan& plan, const PartOwner& owner, std::vector<File>& files, const BucketPair& buckets,
    const std::function<void(const SavePart& part, const ReserveBytes& room)>& source);

}  // namespace chassis
