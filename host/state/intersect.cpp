// Computes copies by intersecting pieces.
#include "host/state/intersect.hpp"

#include "host/base/error.hpp"

namespace chassis {

std::vector<Copy> copies(const std::vector<Piece>& from, const std::vector<Piece>& to) {
  std::vector<Copy> out;
  for (const Piece& source : from) {
    if (!source.owned) continue;
    for (const Piece& target : to) {
      const Box box = intersection(source.box, target.box);
      if (!box.empty()) out.push_back({box, source.view(box), target.view(box)});
    }
  }
  return out;
}

std::vector<Copy> copies(const Layout& from, int from_rank, const Layout& to, int to_rank) {
  if (from.descriptor().global_shape != to.descriptor().global_shape)
    throw plugin_error("tensor '" + to.descriptor().fqn + "' has shape " + text(to.descriptor().global_shape) +
                       ", its source '" + from.descriptor().fqn + "' " + text(from.descriptor().global_shape));
  return copies(from.pieces(from_rank), to.pieces(to_rank));
}

}  // namespace chassis
