// Where a directory may be written: never over the work of a run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/checkpoint_root.hpp"

namespace chassis {

class OutputPlace {
 public:
  // Refuses a directory that is one of `sources`, lies inside of a checkpoint or, unless it becomes one to resume from,
  // in a run's folder of checkpoints. Where it lies in the directory of a run, takes that run's lock until destroyed, and
  // refuses one in progress. What may be replaced is check_replaceable()'s to say.
  OutputPlace(const std::string& directory, const std::vector<std::string>& sources, bool becomes_resumable);

  const std::string& parent() const { return parent_; }
  const std::string& name() const { return name_; }

 private:
  std::string parent_, name_;
  std::optional<CheckpointRoot> run_;
};

// Refuses a run directory that is a checkpoint, or lies inside of one or among those of another run: the files of the
// one would spoil the other.
void check_run_place(const std::string& directory);

}  // namespace chassis
