// All that a run does before its first step.
#pragma once

#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/session/replicas.hpp"
#include "host/session/session.hpp"
#include "host/train/prepared_run.hpp"
#include "host/train/signals.hpp"

namespace chassis {

// All outlive the run.
struct RunInputs {
  const Config& config;  // as the session got it, to plan the run with
  const std::vector<std::string>& plugin_path;
  Session& session;
  ReplicaCheck& replicas;
  RunSignals& signals;
};

// [control][all-ranks] First does the work that needs no directory, then locks the directory, then checks all, then
// writes the first byte. Starts from new weights or resumes, and logs what the run will do. On a failure, `run` keeps
// the objects made so far.
void prepare_run(const RunInputs& inputs, PreparedRun& run);

}  // namespace chassis
