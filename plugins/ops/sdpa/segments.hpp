// Chooses the segments of rows that one call of LibTorch's kernel computes.
#pragma once

#include <cstdint>
#include <vector>

#include "mask.hpp"

namespace sdpa {

// The cost of a call of the kernel, and the limits of a group.
struct GroupLimits {
  double ns_of_pair = 0.0;  // of a query and a key, over all heads
  bool may_pad = false;     // under a causal mask no query sees the padding after it
  int64_t max_tokens = 0;   // of a group of several segments, with their padding
};

// Segments that one call computes. Several are copied one after another, each padded to `length` tokens; a single one
// may span several rows, and is not copied.
struct Group {
  std::vector<Segment> segments;
  int64_t length = 0;
};

// Puts every segment into exactly one group. A few segments are each computed alone, without a copy: only many segments
// cost more in calls than in copies and padding.
std::vector<Group> group_segments(const std::vector<Segment>& segments, const GroupLimits& limits);

}  // namespace sdpa
