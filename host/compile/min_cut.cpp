// Augments along shortest paths until the sink is out of reach.
#include "host/compile/min_cut.hpp"

#include <algorithm>

namespace chassis {
namespace {

constexpr size_t kNoEdge = static_cast<size_t>(-1);

}  // namespace

void MinCut::add_edge(size_t from, size_t to, uint64_t capacity) {
  edges_of_[from].push_back(edges_.size());
  edges_.push_back({to, capacity});
  edges_of_[to].push_back(edges_.size());
  edges_.push_back({from, 0});
}

std::vector<uint8_t> MinCut::run(size_t source, size_t sink) {
  for (;;) {
    const std::vector<size_t> reached_by = search(source);
    if (reached_by[sink] == kNoEdge) {
      std::vector<uint8_t> side;
      for (size_t v = 0; v < reached_by.size(); ++v) side.push_back(v == source || reached_by[v] != kNoEdge);
      return side;
    }
    uint64_t flow = kUncut;
    for (size_t v = sink; v != source; v = edges_[reached_by[v] ^ 1].to)
      flow = std::min(flow, edges_[reached_by[v]].capacity);
    for (size_t v = sink; v != source; v = edges_[reached_by[v] ^ 1].to) {
      edges_[reached_by[v]].capacity -= flow;
      edges_[reached_by[v] ^ 1].capacity += flow;
    }
  }
}

std::vector<size_t> MinCut::search(size_t source) const {
  std::vector<size_t> reached_by(edges_of_.size(), kNoEdge), queue = {source};
  for (size_t i = 0; i < queue.size(); ++i)
    for (const size_t edge : edges_of_[queue[i]]) {
      const size_t to = edges_[edge].to;
      if (edges_[edge].capacity == 0 || to == source || reached_by[to] != kNoEdge) continue;
      reached_by[to] = edge;
      queue.push_back(to);
    }
  return reached_by;
}

}  // namespace chassis
