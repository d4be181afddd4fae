// The adapters of `chassis serve BASE --lora NAME=DIR`, each with a session that shares the tensors of the base.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/command/command.hpp"
#include "host/save/weights.hpp"
#include "host/session/session.hpp"

namespace chassis {

// NAME=DIR
struct AdapterArgument {
  std::string name, directory;

  std::string text() const { return "--lora " + name + "=" + directory; }
};

// Throws a config error for a text without NAME or DIR, for a NAME that URLs and logs cannot hold, and for one that is
// given twice or is that of the base.
std::vector<AdapterArgument> read_adapter_arguments(const std::vector<std::string>& given, const std::string& base);

class ServedAdapter {
 public:
  // Compiles the base with the adapter, and compares the adapter's files with it; allocates no parameter. DIR is an
  // adapter in PEFT's format, a checkpoint of one, or the directory of a run, whose newest checkpoint is used. `config`
  // is that of the base, which outlives the object. Its errors, and those of load(), name the argument.
  ServedAdapter(AdapterArgument argument, ConfigArguments config, const Session& base, World& world);

  const std::string& name() const { return argument_.name; }
  const std::string& directory() const { return argument_.directory; }
  Session& session() { return *session_; }
  // Allocates what the adapter has of its own, and loads it. `base` has been loaded.
  void load(const LoadedWeights& base);

 private:
  AdapterArgument argument_;
  std::string path_;  // the directory with its files
  const Session& base_;
  std::unique_ptr<Session> session_;
};

}  // namespace chassis
