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
  // in a run's folder of checkpoints. Elsewhere in the directory of a run only final/ and export-NAME/ may be written,
  // from what lies in that run. There it takes the run's lock until destroyed, and refuses one in progress. What may be
  // replaced is check_replaceable()'s to say.
  OutputPlace(const std::string& directory, const std::vector<std::string>& sources, bool becomes_resumable);

  const std::string& parent() const { return parent_; }
  const std::string& name() const { return name_; }
  // Says what was there before, if anything was; once it has been replaced.
  void tell_replaced() const;

 private:
  std::string parent_, name_, replaced_;
  std::optional<CheckpointRoot> run_;
};

// Refuses a run directory that is a checkpoint, or lies inside of one or among those of another run: the files of the
// one would spoil the other.
void check_run_place(const std::string& directory);

}  // namespace chassis
