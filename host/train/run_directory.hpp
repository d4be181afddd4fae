// The directory of a run: resolved.toml, run.json, plugins.lock, log.txt, metrics.jsonl, checkpoints/, final/.
#pragma once

#include <string>

#include "host/train/session.hpp"

namespace chassis {

// Two runs are one if model and data are the same; world size, strategy and length may change on resume.
struct RunIdentity {
  std::string model;
  std::string data;
};

// Creates the directory and what describes the run, or proves that the run there is this one. Throws a config error that
// says what differs, a storage error if it can not be written.
void open_run_directory(const std::string& path, Session& session, const RunIdentity& identity);

}  // namespace chassis
