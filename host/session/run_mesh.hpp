// Where a rank stands among the others: the mesh of the run, the strategies that serve its axes, and what its ranks
// talk through.
#pragma once

#include <memory>

#include "host/launch/world.hpp"
#include "host/program/parallel_stack.hpp"
#include "host/service/comm.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

// The ranks of the mesh: those of `world`, or of a world that is not there.
struct MeshPlace {
  World& world;
  int num_planned = 0;  // ranks of the world that is not there; 0: there is one
  int planned_rank = 0;

  bool is_planned() const { return num_planned > 0; }
  int size() const { return is_planned() ? num_planned : world.size(); }
  int rank() const { return is_planned() ? planned_rank : world.rank(); }
};

struct RunMesh {
  MeshShape shape;
  int rank = 0;
  std::unique_ptr<ParallelStack> stack;
};

// The strategies of [[parallel]], and the sizes that [mesh] and the number of ranks give the axes. Throws config
// errors.
RunMesh make_mesh(const Settings& settings, RunPlugins& plugins, const MeshPlace& place);

// [all-ranks] Over the backend that [comm] names, for tensors of `device`; in a world that is not there, over the first
// that moves nothing; with one rank, over none. Ranks with other settings or other plugins are refused here.
std::unique_ptr<Communicator> make_communicator(const Config& config, RunPlugins& plugins, const RunMesh& mesh,
                                                const MeshPlace& place, Device device);

// What strategies are told beside program and parameters.
StackFacts stack_facts(const Config& config, const RunMesh& mesh, Device device);

}  // namespace chassis
