// What a rank holds of a plan, sent through its two buckets to the final places in the files.
#pragma once

#include <cstdint>
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

// By file of the plan: whether this owner has a part in it.
std::vector<bool> files_with_parts(const SavePlan& plan, const PartOwner& owner);

// Returns for each part of this owner, in the plan's order, the remainder that it adds to its box's checksum. Those of
// `files` that hold parts are open.
std::vector<uint32_t> stream_parts(const SavePlan& plan, const PartOwner& owner, std::vector<File>& files,
                                   const BucketPair& buckets, const LocalTensors& tensors);

}  // namespace chassis
