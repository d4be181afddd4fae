// The collectives of Shards: the layout of parameters in a buffer, and which collectives are launched together. Only
// shards.cpp and shards_reduce.cpp include it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "host/parallel/shards.hpp"
#include "host/service/memory.hpp"

namespace chassis {

inline Tensor flat_buffer(int64_t elements, Dtype dtype, Device device) {
  MemoryTag tag(MemoryCategory::kCommunication);
  const int64_t sizes[] = {elements};
  return Tensor::empty(sizes, dtype, device);
}

// The parameters of one collective. The result of a gather, and the input of a reduction, is laid out as
// [rank][parameter]. Rows are padded to one length, unless a parameter has an owner: then they are packed without gaps.
struct Shards::Lane {
  std::vector<uint32_t> ids;
  std::vector<uint64_t> counts;  // elements of each rank's row, if they differ
  Tensor send, recv;
  bool in_place = false;  // a gather of one parameter, whose recv is its value

  // `elements(id, rank)`: the elements of the parameter in that rank's row.
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
  int64_t row() const { return row_; }      // elements of this rank's row
  // The offset of parameter i: in the buffer of all rows, and in this rank's row.
  int64_t offset(size_t i, int rank) const {
    return counts.empty() ? rank * row_ + offsets_[i] : offsets_[static_cast<size_t>(rank) * ids.size() + i];
  }
  int64_t own_offset(size_t i) const { return offsets_[own_ + i] - offsets_[own_]; }

 private:
  std::vector<int64_t> offsets_;  // offsets in one row; in all rows if they differ
  int64_t row_ = 0, total_ = 0;
  size_t own_ = 0;
};

// Collectives that were launched together.
struct Shards::Flight {
  CommHandle work;
  ProcessGroup* group = nullptr;
  std::vector<Lane> lanes;
  bool keep = false;  // a reduction that the replicas join later
  std::string name;
};

// Groups parameters by the launch that they belong to, and within it by collective, in order of first use, which is the
// same on every rank.
class Shards::Launches {
 public:
  struct Launch {
    ProcessGroup* group;
    Dtype dtype;
    std::vector<std::vector<uint32_t>> lanes;  // the first is shared; each other has one parameter
  };
  void add(ProcessGroup* group, Dtype dtype, uint32_t id, bool separate) {
    auto launch = std::find_if(launches_.begin(), launches_.end(),
                               [&](const Launch& l) { return l.group == group && l.dtype == dtype; });
    if (launch == launches_.end()) launch = launches_.insert(launch, {group, dtype, {{}}});
    if (separate)
      launch->lanes.push_back({id});
    else
      launch->lanes[0].push_back(id);
  }
  const std::vector<Launch>& all() const { return launches_; }

 private:
  std::vector<Launch> launches_;
};

}  // namespace chassis
