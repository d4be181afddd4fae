// Assigns the largest tensor first, by "longest processing time first": R. L. Graham, Bounds on Multiprocessing Timing
// Anomalies, 1969.
#include "host/state/owners.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis {
namespace {

int64_t held_bytes(const Layout& layout, int rank) {
  int64_t elements = 0;
  for (const Box& box : layout.boxes(rank)) elements += numel(box);
  return elements * size_bytes(layout.descriptor().dtype);
}

}  // namespace

void balance_owners(std::span<Descriptor> tensors, const MeshShape& mesh) {
  std::vector<Descriptor*> replicated, others;
  for (Descriptor& tensor : tensors) {
    tensor.owner = OwnerRule::kSpread;
    if (tensor.tie.empty()) (Layout(tensor, mesh).num_replicas() > 1 ? replicated : others).push_back(&tensor);
  }
  if (replicated.empty()) return;
  std::vector<int64_t> owned_bytes(static_cast<size_t>(mesh.world_size()));
  for (const Descriptor* tensor : others) {
    const Layout layout(*tensor, mesh);
    for (int rank = 0; rank < mesh.world_size(); ++rank)
      owned_bytes[static_cast<size_t>(rank)] += held_bytes(layout, rank);
  }
  const auto largest_first = [](const Descriptor* tensor) {
    return std::tuple(-numel(tensor->global_shape) * size_bytes(tensor->dtype), std::string_view(tensor->fqn));
  };
  std::sort(replicated.begin(), replicated.end(),
            [&](const Descriptor* a, const Descriptor* b) { return largest_first(a) < largest_first(b); });

  for (Descriptor* tensor : replicated) {
    const Layout layout(*tensor, mesh);
    // For each replica, the bytes that its busiest rank would own.
    std::vector<int64_t> largest(static_cast<size_t>(layout.num_replicas())), owned = owned_bytes;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      int64_t& bytes = owned[static_cast<size_t>(rank)];
      bytes += held_bytes(layout, rank);
      int64_t& of_replica = largest[static_cast<size_t>(layout.replica(rank))];
      of_replica = std::max(of_replica, bytes);
    }
    tensor->owner = OwnerRule::kGiven;
    tensor->owner_replica = static_cast<int>(std::min_element(largest.begin(), largest.end()) - largest.begin());
    for (int rank = 0; rank < mesh.world_size(); ++rank)
      if (layout.replica(rank) == tensor->owner_replica)
        owned_bytes[static_cast<size_t>(rank)] = owned[static_cast<size_t>(rank)];
  }
}

}  // namespace chassis
