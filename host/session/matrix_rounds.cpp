// Deals the matrices of each class to the ranks along their axis.
#include "host/session/matrix_rounds.hpp"

#include <algorithm>
#include <cstddef>
#include <map>

#include "host/session/matrix_exchange.hpp"
#include "host/state/shape.hpp"

namespace chassis {

bool is_stepped_whole(const Parameter& parameter) {
  return parameter.granularity.kind == Granularity::Kind::kMatrix && !dividing_axis(parameter).empty();
}

// A class contains the matrices that the same axis divides and that have the same placements on the other axes. So the
// ranks that hold parts of one hold parts of all. The ranks own the matrices in turn, the largest first. Each round has
// one matrix for each rank of the axis, and steps them at the same time.
std::vector<MatrixRound> matrix_rounds(const std::vector<Parameter*>& trained, const MeshShape& mesh) {
  std::map<std::string, std::vector<Parameter*>> classes;
  for (Parameter* p : trained) {
    if (!is_stepped_whole(*p)) continue;
    std::string key = dividing_axis(*p);
    for (size_t i = p->num_layout_placements; i < p->descriptor.placements.size(); ++i)
      key += "\n" + p->descriptor.placements[i].text();
    classes[key].push_back(p);
  }
  std::vector<MatrixRound> rounds;
  for (auto& [key, members] : classes) {
    const auto elements = [](const Parameter* p) { return numel(p->descriptor.global_shape); };
    std::stable_sort(members.begin(), members.end(),
                     [&](const Parameter* a, const Parameter* b) { return elements(a) > elements(b); });
    const std::string axis = dividing_axis(*members.front());
    const auto size = static_cast<size_t>(mesh.size(mesh.find(axis)));
    for (size_t i = 0; i < members.size(); ++i) {
      if (i % size == 0) rounds.push_back({axis, {}});
      rounds.back().matrices.push_back(members[i]);
    }
  }
  return rounds;
}

}  // namespace chassis
