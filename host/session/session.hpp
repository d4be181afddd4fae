// Everything that a configuration names, put together: plugins, mesh, model, run time, data. The verbs of the command
// line start from here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/launch/world.hpp"
#include "host/service/metrics.hpp"
#include "host/session/plugin_tokenizer.hpp"
#include "host/session/ranks.hpp"
#include "host/session/run_data.hpp"
#include "host/session/run_mesh.hpp"
#include "host/session/run_model.hpp"
#include "host/session/run_plugins.hpp"
#include "host/session/runtime.hpp"
#include "host/session/step.hpp"
#include "host/session/target.hpp"

namespace chassis {

struct SessionOptions {
  std::vector<std::string> plugin_path = {};  // --plugin-path
  Target target = {};
  World* world = nullptr;  // NULL: one process
  // A rank of a world that is not there, for plans: as many ranks, this one of them, on the first comm plugin that
  // moves nothing.
  int world_size = 0;
  int rank = 0;
  ProgramPasses passes = {};  // over the program, as no plugin offers them yet
};

class Session {
 public:
  // Loads plugins, checks all options, records and resolves the program. Throws every mistake of the configuration at
  // once. Allocates no parameter.
  Session(Config config, const SessionOptions& options);
  ~Session();

  Config& config() { return config_; }
  const Config& config() const { return config_; }
  const Settings& settings() const { return config_.settings(); }
  MetricsStore& metrics() { return metrics_; }
  World& world() { return *world_; }

  RunPlugins& plugins() { return *plugins_; }

  const MeshShape& mesh() const { return mesh_.shape; }
  int rank() const { return mesh_.rank; }
  Ranks ranks() const { return {*mesh_.stack, *communicator_}; }

  const RunModel& model() const { return *model_; }
  // NULL if the configuration names none.
  const PluginTokenizer* tokenizer() const { return tokenizer_.get(); }

  CompiledProgram& compiled() { return *runtime_.compiled; }
  const Program& program() const { return runtime_.compiled->program; }
  ParameterTable& parameters() const { return *runtime_.compiled->parameters; }
  const DiskMapping& disk_mapping() const { return *runtime_.disk_mapping; }
  Executor& executor() { return *runtime_.executor; }
  // Of a configuration that is read for training.
  OptimizerDriver& optimizer() { return *runtime_.optimizer; }
  Device device() const { return runtime_.compiled->options.device; }
  Dtype compute() const { return runtime_.compiled->options.compute; }

  // Of a configuration that is read for training.
  StepParts step_parts() { return {executor(), parameters(), optimizer(), ranks(), device()}; }
  DataNeeds data_needs() const { return {settings(), program(), tokenizer(), world_->launch().local_rank == 0}; }

  // [all-ranks] Parameters and optimizer states of this rank, and what strategies need; contents are undefined.
  void allocate() { allocate(device()); }
  void allocate(Device device);  // elsewhere: for plans
  // [step][all-ranks] What ops read shows what was loaded, initialized or stepped.
  void publish();

 private:
  Config config_;
  MetricsStore metrics_;
  World alone_;
  World* world_;
  std::optional<RunPlugins> plugins_;
  std::unique_ptr<Communicator> communicator_;  // outlives the stack's shards
  RunMesh mesh_;
  std::optional<RunModel> model_;
  std::unique_ptr<PluginTokenizer> tokenizer_;
  Runtime runtime_;
};

}  // namespace chassis
