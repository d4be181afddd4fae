// Who started this process, as which rank of how many: torchrun, SLURM, OpenMPI, `--nproc` of our own, or nobody.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace chassis {

struct Launch {
  std::string source;  // "torchrun", "RANK and WORLD_SIZE", "OpenMPI", "SLURM", "chassis --nproc"; empty: nobody
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this machine
  int local_world_size = 1;
  std::string node = "";  // which machine of the run this is, in the launcher's words; empty: it has none
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool store_is_elsewhere = false;  // the launcher serves the store (torchrun's agent, --nproc's parent); else rank 0
  std::string store_prefix = "";    // tells this start from others in the same store, or on the same port
  bool alone() const { return world_size == 1; }
};

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// A launcher inside another, such as torchrun on every node of a SLURM step, is the innermost one. Throws a config
// error that names both if two left marks that cannot be nested like that, or the variable if one is missing, is not a
// number or is out of range.
Launch discover_launch(const Environment& environment);

}  // namespace chassis
