// Takes the longest segments first, and adds shorter ones while their padding costs less than a call.
#include "segments.hpp"

#include <algorithm>
#include <tuple>

namespace sdpa {
namespace {

constexpr size_t kFewSegments = 4;
// Measured with short documents: operators, tensors, and the start of LibTorch's threads.
constexpr double kNsOfCall = 20'000;

int64_t length_of(const Segment& segment) { return segment.end - segment.begin; }

std::vector<Segment> single_rows(const std::vector<Segment>& segments) {
  std::vector<Segment> single;
  for (const Segment& segment : segments)
    for (int64_t row = segment.row; row < segment.row + segment.rows; ++row)
      single.push_back({row, 1, segment.begin, segment.end});
  return single;
}

bool fits(const Group& group, const Segment& segment, const GroupLimits& limits) {
  const int64_t length = length_of(segment);
  if ((static_cast<int64_t>(group.segments.size()) + 1) * group.length > limits.max_tokens) return false;
  if (length == group.length) return true;
  const double padded_pairs = static_cast<double>(group.length * group.length - length * length) / 2;
  return limits.may_pad && padded_pairs * limits.ns_of_pair < kNsOfCall;
}

}  // namespace

std::vector<Group> group_segments(const std::vector<Segment>& segments, const GroupLimits& limits) {
  std::vector<Group> groups;
  if (segments.size() <= kFewSegments) {
    for (const Segment& segment : segments) groups.push_back({{segment}, length_of(segment)});
    return groups;
  }
  std::vector<Segment> by_length = single_rows(segments);
  std::sort(by_length.begin(), by_length.end(), [](const Segment& a, const Segment& b) {
    return std::tuple(-length_of(a), a.row, a.begin) < std::tuple(-length_of(b), b.row, b.begin);
  });
  for (const Segment& segment : by_length) {
    if (groups.empty() || !fits(groups.back(), segment, limits))
      groups.push_back({{segment}, length_of(segment)});
    else
      groups.back().segments.push_back(segment);
  }
  return groups;
}

}  // namespace sdpa
