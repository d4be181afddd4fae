// The minimum cut of a graph, with which passes choose the values that are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace chassis {

// The minimum cut between source and sink, by augmenting paths (Edmonds & Karp 1972).
class MinCut {
 public:
  static constexpr uint64_t kUncut = uint64_t{1} << 62;  // more than all other capacities together

  explicit MinCut(size_t num_vertices) : edges_of_(num_vertices) {}

  void add_edge(size_t from, size_t to, uint64_t capacity);
  // By vertex: 1 on the source's side. If several cuts are minimum, takes the one with the fewest vertices there. Call
  // it once.
  std::vector<uint8_t> run(size_t source, size_t sink);

 private:
  struct Edge {
    size_t to;
    uint64_t capacity;  // residual
  };

  // Breadth-first search: the edge by which each vertex was reached.
  std::vector<size_t> search(size_t source) const;

  std::vector<Edge> edges_;  // each followed by its reverse
  std::vector<std::vector<size_t>> edges_of_;
};

}  // namespace chassis
