// What a rank holds of a plan, sent through its two buckets to the final places in the files.
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

namespace chassis {

// Whose parts a process writes.
struct PartOwner {
  int rank = 0;
  bool writes_all = false;  // a process that stands in for every rank of the plan

  bool writes(const SavePart& part) const { return writes_all || part.rank == rank; }
};

// Where bytes of a part go: `at` counts in the part's box on disk, both numbers are whole elements. May give room for
// fewer bytes than asked for, never none; what it gives is filled before it is called again.
using Room = std::function<std::span<std::byte>(uint64_t at, uint64_t num_bytes)>;
// Copies bytes into it.
void put(const Room& room, uint64_t at, std::span<const std::byte> bytes);
// Asks for room for every byte of the part once, in any order, and fills it.
using PartSource = std::function<void(const SavePlan& plan, const SavePart& part, const Room& room)>;
// The parts of tensors in memory, cast to the dtype on disk.
PartSource from_tensors(LocalTensors tensors);

// By file of the plan: whether this owner has a part in it.
std::vector<bool> files_with_parts(const SavePlan& plan, const PartOwner& owner);

// What a part adds to the checksums of its box: CRC32C, and the format's own if that is another one.
struct PartRemainders {
  uint32_t crc32c = 0;
  uint32_t of_format = 0;
};

// Returns for each part of this owner, in the plan's order, what it adds to its box's checksums. Those of `files` that
// hold parts are open.
std::vector<PartRemainders> stream_parts(const SavePlan& plan, const PartOwner& owner, std::vector<File>& files,
                                   const BucketPair& buckets,
                                   const std::function<void(const SavePart& part, const Room& room)>& source);

}  // namespace chassis
