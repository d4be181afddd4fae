// The mesh of a run, the position of this rank in it, the strategies of its axes, and the communicator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/launch/world.hpp"
#include "host/parallel/stack_context.hpp"
#include "host/parallel/strategies.hpp"
#include "host/service/comm.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

// The ranks of the mesh: those of `world`, or the ranks of a plan, which have no processes.
struct MeshPlace {
  World& world;
  int num_planned = 0;  // ranks of the plan; 0: no plan, the ranks of `world`
  int planned_rank = 0;

  bool is_planned() const { return num_planned > 0; }
  int size() const { return is_planned() ? num_planned : world.size(); }
  int rank() const { return is_planned() ? planned_rank : world.rank(); }
};

struct RunMesh {
  MeshShape shape;
  int rank = 0;
  std::shared_ptr<Strategies> strategies;
};

// New instances of the strategies of [[parallel]].
std::vector<StackMember> stack_members(const Settings& settings, RunPlugins& plugins);

// Creates the strategies of [[parallel]], and computes the sizes of the axes from [mesh] and the number of ranks.
// Throws config errors.
RunMesh make_mesh(const Settings& settings, RunPlugins& plugins, const MeshPlace& place);

// [all-ranks] Uses the backend that [comm] names, for tensors of `device`; for a plan, the first backend that moves
// nothing; with one rank, none. Throws if ranks have different settings or plugins.
std::unique_ptr<Communicator> make_communicator(const Config& config, RunPlugins& plugins, const RunMesh& mesh,
                                                const MeshPlace& place, Device device);

// An instance of the backend that make_communicator() would use among the ranks of `mesh`; NULL with one rank.
std::unique_ptr<Instance> open_comm_backend(const Config& config, RunPlugins& plugins, const RunMesh& mesh,
                                            const MeshPlace& place, Device device);
// Version and hash of each loaded plugin, one a line, which must be the same on all ranks.
std::string loaded_plugins_text(const PluginRegistry& registry);

// Says which ranks of a tensor axis lie on which machines, if they lie on several; empty if each axis lies within one.
// `machines` by rank.
std::string distant_ranks_text(const MeshShape& mesh, const std::vector<std::string>& machines);

// The facts that strategies get in addition to program and parameters.
StackContext stack_context(const Config& config, const RunMesh& mesh, Device device, DimSizes sizes);

}  // namespace chassis
