// Finds the launcher that started this process, and its rank: torchrun, SLURM, OpenMPI, our own `--nproc`, or none.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace chassis {

struct Launch {
  std::string source;  // "torchrun", "RANK and WORLD_SIZE", "OpenMPI", "SLURM", "chassis --nproc"; empty: none
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this machine
  int local_world_size = 1;
  std::string node = "";  // the launcher's number for this machine; empty: it gives none
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool store_is_elsewhere = false;  // the launcher serves the store (torchrun's agent, --nproc's parent), not rank 0
  std::string store_prefix = "";    // differs between starts that use the same store or the same port
  bool alone() const { return world_size == 1; }
};

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// If launchers are nested, such as torchrun on every node of a SLURM step, the innermost one counts. Throws a config
// error that names two launchers if their variables contradict each other, or a variable if it is missing, not a number
// or out of range.
Launch discover_launch(const Environment& environment);

}  // namespace chassis
