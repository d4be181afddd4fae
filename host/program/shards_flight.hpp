// The collectives of Shards in flight: how parameters are laid out in one, and which are started together. Included by
// shards.cpp and shards_reduce.cpp alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "host/program/shards.hpp"
#include "host/service/memory.hpp"

namespace chassis {

inline Tensor flat_buffer(int64_t elements, Dtype dtype, Device device) {
  MemoryTag tag(MemoryCategory::kCommunication);
  const int64_t sizes[] = {elements};
  return Tensor::empty(sizes, dtype, device);
}

// Parameters of one collective: of a gather [rank][parameter], of a reduction the same on the sending side. Rows are of
// one length, padded, unless a parameter lies on one rank alone: then they are packed without gaps.
struct Shards::Lane {
  std::vector<uint32_t> ids;
  std::vector<uint64_t> counts;  // elements of each rank's row, if they differ
  Tensor send, recv;
  bool in_place = false;  // a gather of one parameter, whose recv is its value

  // `elements(id, rank)`: what a rank has in its row.
  template <typename Elements>
  void lay_out(int num_ranks, int rank, bool even, const Elements& elements) {
    offsets_.clear();
    for (int r = 0; r < (even ? 1 : num_ranks); ++r) {
      const int64_t begin = total_;
      for (uint32_t id : ids) {
        offsets_.push_back(total_);
        total_ += elements(id, r);
      }
      if (!even) counts.push_back(static_cast<uint64_t>(total_ - begin));
    }
    row_ = even ? total_ : static_cast<int64_t>(counts[static_cast<size_t>(rank)]);
    own_ = even ? 0 : static_cast<size_t>(rank) * ids.size();
    if (even) total_ *= num_ranks;
  }
  int64_t total() const { return total_; }  // elements of all rows
  int64_t row() const { return row_; }      // of this rank's
  // Where parameter i begins: in all rows one after the other; in this rank's row.
  int64_t offset(size_t i, int rank) const {
    return counts.empty() ? rank * row_ + offsets_[i] : offsets_[static_cast<size_t>(rank) * ids.size() + i];
  }
  int64_t own_offset(size_t i) const { return offsets_[own_ + i] - offsets_[own_]; }

 private:
  std::vector<int64_t> offsets_;  // of a row; if they differ, of all rows
  int64_t row_ = 0, total_ = 0;
  size_t own_ = 0;
};

// Collectives that were started as one.
struct Shards::Flight {
  CommWork work;
  CommGroup* group = nullptr;
  std::vector<Lane> lanes;
  bool keep = false;  // a reduction that the replicas do not join yet
  std::string name;
};

// Parameters by what is started as one, and in it by collective. In order of first use, which is the same on every
// rank.
class Shards::Batches {
 public:
  struct Batch {
    CommGroup* group;
    Dtype dtype;
    std::vector<std::vector<uint32_t>> lanes;  // the first is joint
  };
  void add(CommGroup* group, Dtype dtype, uint32_t id, bool alone) {
    auto batch = std::find_if(batches_.begin(), batches_.end(),
                              [&](const Batch& b) { return b.group == group && b.dtype == dtype; });
    if (batch == batches_.end()) batch = batches_.insert(batch, {group, dtype, {{}}});
    if (alone)
      batch->lanes.push_back({id});
    else
      batch->lanes[0].push_back(id);
  }
  const std::vector<Batch>& all() const { return batches_; }

 private:
  std::vector<Batch> batches_;
};

}  // namespace chassis
