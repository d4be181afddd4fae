// The questions of the layout pass to the strategies: which dims and positions each axis divides.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/compile/layout_pass.hpp"
#include "host/graph/program.hpp"
#include "host/parallel/strategies.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// [control] What a strategy divides, by axis. Throws what it refuses.
std::map<std::string, Division> ask_divisions(const StackStrategy& strategy, const MeshShape& mesh, int rank,
                                              const Program& program);

// [control] The axes of this mesh that may divide the computation, for the layout pass, which asks the strategies
// through them. The strategies must outlive them.
std::vector<std::unique_ptr<LayoutStrategy>> layout_axes(const Strategies& strategies, const MeshShape& mesh, int rank);

}  // namespace chassis
