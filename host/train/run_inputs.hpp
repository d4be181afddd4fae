// The objects from which a run is made.
#pragma once

#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/session/replicas.hpp"
#include "host/session/session.hpp"
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

}  // namespace chassis
