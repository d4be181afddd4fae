// Assigns the largest tensor first, by "longest processing time first": R. L. Graham, Bounds on Multiprocessing Timing
// Anomalies, 1969.
#include "host/state/owners.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis {
namespace {

// The elements that ranks hold, computed once for tensors that are divided alike.
class HeldElements {
 public:
  // By rank. Valid until the next call.
  const std::vector<int64_t>& of(const Layout& layout) {
    std::string key = layout.key();
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    if ((known_.size() + 1) * static_cast<size_t>(layout.world_size()) > kMaxKnown) known_.clear();
    std::vector<int64_t> elements(static_cast<size_t>(layout.world_size()));
    for (int rank = 0; rank < layout.world_size(); ++rank)
      for (const Box& box : layout.boxes(rank)) elements[static_cast<size_t>(rank)] += numel(box);
    return known_.emplace(std::move(key), std::move(elements)).first->second;
  }

 private:
  static constexpr size_t kMaxKnown = size_t{1} << 20;           // numbers; 8 MiB
  std::unordered_map<std::string, std::vector<int64_t>> known_;  // by Layout::key()
};

}  // namespace

void balance_owners(std::span<Descriptor> tensors, const MeshShape& mesh) {
  std::vector<Descriptor*> replicated, others;
  for (Descriptor& tensor : tensors) {
    tensor.owner = OwnerRule::kSpread;
    (Layout(tensor, mesh).num_replicas() > 1 ? replicated : others).push_back(&tensor);
  }
  if (replicated.empty()) return;
  HeldElements held_elements;
  const auto add_held = [&](const Layout& layout, std::vector<int64_t>& bytes) {
    const std::vector<int64_t>& held = held_elements.of(layout);
    const int64_t element_bytes = size_bytes(layout.descriptor().dtype);
    for (size_t rank = 0; rank < bytes.size(); ++rank) bytes[rank] += held[rank] * element_bytes;
  };
  std::vector<int64_t> owned_bytes(static_cast<size_t>(mesh.world_size()));
  for (const Descriptor* tensor : others) add_held(Layout(*tensor, mesh), owned_bytes);
  const auto largest_first = [](const Descriptor* tensor) {
    return std::tuple(-numel(tensor->global_shape) * size_bytes(tensor->dtype), std::string_view(tensor->fqn));
  };
  std::sort(replicated.begin(), replicated.end(),
            [&](const Descriptor* a, const Descriptor* b) { return largest_first(a) < largest_first(b); });

  for (Descriptor* tensor : replicated) {
    const Layout layout(*tensor, mesh);
    // For each replica, the bytes that its busiest rank would own.
    std::vector<int64_t> largest(static_cast<size_t>(layout.num_replicas())), owned = owned_bytes;
    add_held(layout, owned);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      int64_t& of_replica = largest[static_cast<size_t>(layout.replica(rank))];
      of_replica = std::max(of_replica, owned[static_cast<size_t>(rank)]);
    }
    tensor->owner = OwnerRule::kGiven;
    tensor->owner_replica = static_cast<int>(std::min_element(largest.begin(), largest.end()) - largest.begin());
    for (int rank = 0; rank < mesh.world_size(); ++rank)
      if (layout.replica(rank) == tensor->owner_replica)
        owned_bytes[static_cast<size_t>(rank)] = owned[static_cast<size_t>(rank)];
  }
}

}  // namespace chassis
