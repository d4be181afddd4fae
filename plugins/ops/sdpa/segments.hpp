// Which segments of rows one call of LibTorch's kernel computes.
#pragma once

#include <cstdint>
#include <vector>

#include "mask.hpp"

namespace sdpa {

// What a call of the kernel costs, and what it may take.
struct GroupLimits {
  double ns_of_pair = 0.0;  // of a query and a key, over all heads
  bool may_pad = false;     // under a causal mask no query sees the padding behind it
  int64_t max_tokens = 0;   // of a group of several segments, with their padding
};

// Segments that one call computes. Several are copied behind each other, each `length` tokens with its padding; a
// single one may be of several rows, and is not copied.
struct Group {
  std::vector<Segment> segments;
  int64_t length = 0;
};

// Every segment in one group. A few segments are each computed alone, as they are: only many cost more in calls than in
// copies and padding.
std::vector<Group> group_segments(const std::vector<Segment>& segments, const GroupLimits& limits);

}  // namespace sdpa
