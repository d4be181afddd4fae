// Groups of ranks by their local sizes.
#include "host/state/rank_kinds.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "host/base/mesh_axes.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

using Axes = std::vector<std::string>;

// Stages of a pipeline differ even if they store equally much, because earlier stages keep more micro-batches.
bool is_owned(const Descriptor& d) {
  return d.placements.size() == 1 && d.placements[0].kind == Placement::Kind::kOnlyOn &&
         !divides_units(d.placements[0].axes[0]);
}

class Kinds {
 public:
  Kinds(std::span<const Descriptor* const> tensors, const MeshShape& mesh) : mesh_(mesh) {
    std::vector<const Descriptor*> known;
    for (const Descriptor* d : tensors) {
      if (is_owned(*d)) {
        owned_[d->placements[0].axes][d->placements[0].coordinate].push_back(numel(d->padded_shape));
        continue;
      }
      const bool seen = std::any_of(known.begin(), known.end(), [&](const Descriptor* other) {
        return other->padded_shape == d->padded_shape && other->placements == d->placements &&
               other->granularity == d->granularity;
      });
      if (seen) continue;
      known.push_back(d);
      layouts_.emplace_back(*d, mesh);
    }
    for (auto& [axes, by_coordinate] : owned_)
      for (auto& [coordinate, sizes] : by_coordinate) std::sort(sizes.begin(), sizes.end());
  }

  std::vector<std::vector<int>> run() {
    const int num_ranks = mesh_.world_size();
    std::vector<int> cut_kind(static_cast<size_t>(num_ranks));
    if (const auto axes = common_axes()) {
      const std::vector<int> of_coordinate = kinds_along(*axes);
      for (int rank = 0; rank < num_ranks; ++rank)
        cut_kind[static_cast<size_t>(rank)] = of_coordinate[static_cast<size_t>(coordinate(*axes, rank))];
    } else {
      std::map<std::vector<int64_t>, int> ids;
      for (int rank = 0; rank < num_ranks; ++rank)
        cut_kind[static_cast<size_t>(rank)] = ids.emplace(stored(rank), static_cast<int>(ids.size())).first->second;
    }
    std::map<std::pair<int, std::vector<const Sizes*>>, size_t> group_of;
    std::vector<std::vector<int>> groups;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::pair kind(cut_kind[static_cast<size_t>(rank)], owned(rank));
      const auto [found, fresh] = group_of.emplace(kind, groups.size());
      if (fresh) groups.emplace_back();
      groups[found->second].push_back(rank);
    }
    return groups;
  }

 private:
  using Sizes = std::vector<int64_t>;

  std::vector<int64_t> stored(int rank) const {
    std::vector<int64_t> elements;
    for (const Layout& layout : layouts_) elements.push_back(numel(layout.local_shape(rank)));
    return elements;
  }

  int coordinate(const Axes& axes, int rank) const {
    const MeshShape::Coordinates at = mesh_.coordinates(rank);
    int out = 0;
    for (const std::string& name : axes) {
      const int axis = mesh_.find(name);
      out = out * mesh_.size(axis) + at[static_cast<size_t>(axis)];
    }
    return out;
  }
  int rank_at(const Axes& axes, int coordinate) const {
    MeshShape::Coordinates at{};
    for (size_t k = axes.size(); k-- > 0;) {
      const int axis = mesh_.find(axes[k]);
      at[static_cast<size_t>(axis)] = coordinate % mesh_.size(axis);
      coordinate /= mesh_.size(axis);
    }
    return mesh_.rank(at);
  }

  // The axes that cut all tensors, if they are the same for all tensors and parts never grow from one coordinate to the
  // next; otherwise none.
  std::optional<Axes> common_axes() const {
    std::optional<Axes> axes = Axes{};
    for (const Layout& layout : layouts_) {
      const auto& placements = layout.descriptor().placements;
      if (placements.empty()) continue;
      const Placement& p = placements[0];
      const bool never_grows =
          p.kind == Placement::Kind::kDimChunk || (p.kind == Placement::Kind::kFlatRange && p.ranges.empty());
      if (placements.size() > 1 || !never_grows || (!axes->empty() && *axes != p.axes)) return std::nullopt;
      axes = p.axes;
    }
    return axes;
  }

  // The kind of each coordinate. Since sizes never grow, all coordinates between two with equal sizes have them too.
  std::vector<int> kinds_along(const Axes& axes) const {
    int num_coordinates = 1;
    for (const std::string& name : axes) num_coordinates *= mesh_.size(mesh_.find(name));
    std::vector<int> kinds(static_cast<size_t>(num_coordinates));
    int next = 0;
    const auto fill = [&](const auto& again, int begin, int end, const Sizes& first, const Sizes& last) -> void {
      if (first == last) {
        // Bisection may have separated neighbouring ranges of one kind.
        const bool joins = begin > 0 && stored(rank_at(axes, begin - 1)) == first;
        std::fill(kinds.begin() + begin, kinds.begin() + end, joins ? kinds[static_cast<size_t>(begin - 1)] : next++);
        return;
      }
      const int middle = begin + (end - begin) / 2;
      again(again, begin, middle, first, stored(rank_at(axes, middle - 1)));
      again(again, middle, end, stored(rank_at(axes, middle)), last);
    };
    fill(fill, 0, num_coordinates, stored(rank_at(axes, 0)), stored(rank_at(axes, num_coordinates - 1)));
    return kinds;
  }

  // The sizes of the whole tensors that this rank has and some others do not. Equal lists share one object, so that
  // pointers can be compared.
  std::vector<const Sizes*> owned(int rank) {
    std::vector<const Sizes*> out;
    for (const auto& [axes, by_coordinate] : owned_) {
      const auto found = by_coordinate.find(coordinate(axes, rank));
      out.push_back(found == by_coordinate.end() ? nullptr : &canonical_.emplace(found->second, 0).first->first);
    }
    return out;
  }

  const MeshShape& mesh_;
  std::vector<Layout> layouts_;
  std::map<Axes, std::unordered_map<int, Sizes>> owned_;
  std::map<Sizes, int> canonical_;
};

}  // namespace

std::vector<std::vector<int>> rank_kinds(std::span<const Descriptor* const> tensors, const MeshShape& mesh) {
  return Kinds(tensors, mesh).run();
}

}  // namespace chassis
