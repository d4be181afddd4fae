// Checks where an export, an import or a run may write, so that nothing of another run is overwritten.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/checkpoint/checkpoint_root.hpp"

namespace chassis {

class OutputDirectory {
 public:
  // Refuses a directory that is one of `sources`, lies inside a checkpoint or, unless it becomes one to resume from, in
  // a run's folder of checkpoints. Elsewhere in a run directory only final/ and export-NAME/ may be written, from a
  // source in that run. Holds the lock of that run until destroyed, and refuses a run in progress. Does not decide what
  // may be replaced: check_replaceable() does.
  OutputDirectory(const std::string& directory, const std::vector<std::string>& sources, bool becomes_resumable);

  const std::string& parent() const { return parent_; }
  const std::string& name() const { return name_; }
  // Logs what was replaced, if anything was. Call it after the directory has been written.
  void log_replaced() const;

 private:
  std::string parent_, name_, replaced_;
  std::optional<CheckpointRoot> run_;
};

// Refuses a run directory that is a checkpoint, or lies inside one or among those of another run: a run there would
// damage them.
void check_run_directory(const std::string& directory);

}  // namespace chassis
