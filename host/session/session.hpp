// Builds what a configuration names: plugins, mesh, model, compiled program, optimizer. The verbs of the command line
// start here. The caller opens the data (run_data.hpp).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/config/config.hpp"
#include "host/launch/world.hpp"
#include "host/service/metrics.hpp"
#include "host/session/placed_model.hpp"
#include "host/session/ranks.hpp"
#include "host/session/run_adapter.hpp"
#include "host/session/run_data.hpp"
#include "host/session/run_mesh.hpp"
#include "host/session/run_model.hpp"
#include "host/session/run_objective.hpp"
#include "host/session/run_plugins.hpp"
#include "host/session/run_quant.hpp"
#include "host/session/run_state.hpp"
#include "host/session/step.hpp"
#include "host/session/target.hpp"
#include "host/text/plugin_rows.hpp"
#include "host/text/plugin_tokenizer.hpp"

namespace chassis {

class Session;

// All that the steps of another configuration need, made beside a state that trains. It stores no tensor of a parameter
// or of an optimizer state until the swap moves them: see state_transfer.hpp.
struct NextState {
  Config config;
  std::optional<RunPlugins> plugins = {};       // of the session, with the options of `config`
  std::unique_ptr<Instance> backend = nullptr;  // until connect()
  RunState state = {};
};

struct SessionOptions {
  std::vector<std::string> plugin_path = {};  // --plugin-path
  Target target = {};
  World* world = nullptr;  // NULL: one process
  // For plans: the size of a world without processes, and the rank in it that this session plans. It uses the first
  // comm plugin that moves nothing. 0: no plan.
  int world_size = 0;
  int rank = 0;
  ProgramPasses passes = {};           // in addition to those of the configuration
  Collectives* collectives = nullptr;  // between the ops; NULL: those of the communicator
  int64_t num_scores = 0;              // for weights alone: adds the head that an objective would add; 0: none
  // For generation alone: nothing is trained, so that other sessions can share all parameters.
  bool freezes_all = false;
  // A session of the same model, perhaps with another adapter: this one has the tokenizer of it, and the tensors of the
  // parameters that both freeze. It must outlive this session, and be allocated before. NULL: nothing is shared.
  const Session* lender = nullptr;
};

class Session {
 public:
  // Loads plugins, checks all options, and compiles the program. Throws all errors of keys and options together.
  // Allocates no parameter.
  Session(Config config, const SessionOptions& options);
  ~Session();

  Config& config() { return config_; }
  const Config& config() const { return config_; }
  const Settings& settings() const { return config_.settings(); }
  MetricsStore& metrics() { return metrics_; }
  World& world() { return *world_; }

  RunPlugins& plugins() { return *plugins_; }

  // The objects that compute the steps. Another state may be assigned between two steps.
  RunState& state() { return state_; }
  const RunState& state() const { return state_; }
  const MeshShape& mesh() const { return state_.model.mesh.shape; }
  int rank() const { return state_.model.mesh.rank; }
  Ranks ranks() const { return state_.ranks(); }

  const RunModel& model() const { return *model_; }
  // NULL if the run has no adapter.
  const RunAdapter* adapter() const { return state_.model.adapter.get(); }
  // NULL if the run minimises the cross entropy of tokens, or only generates.
  const RunObjective* objective() const { return objective_ ? &*objective_ : nullptr; }
  // True if it was made with SessionOptions::freezes_all.
  bool freezes_all() const { return freezes_all_; }
  // NULL if the run quantizes nothing.
  const RunQuant* quant() const { return state_.model.quant.get(); }
  // NULL if the run needs no tokenizer and names none.
  const PluginTokenizer* tokenizer() const { return tokenizer_.get(); }

  // As compiled, without recompute; the executor runs it with that of its Execution.
  const CompiledProgram& compiled() const { return *state_.model.compiled; }
  const Program& program() const { return compiled().program(); }
  ParameterTable& parameters() const { return state_.parameters(); }
  const DiskLayout& disk_mapping() const { return *state_.disk_mapping; }
  // The forms in which exports hold the parameters: those of the files from which they come.
  const DiskForms& export_forms() const { return export_forms_; }
  void export_as(DiskForms forms) { export_forms_ = std::move(forms); }
  bool has_executor() const { return state_.model.executor != nullptr; }  // true after allocate()
  Executor& executor() {
    CHASSIS_CHECK(has_executor(), "a session has no executor before its tensors are allocated");
    return *state_.model.executor;
  }
  // Only if the configuration was read for training.
  PlacedOptimizer& optimizer() { return *state_.optimizer; }
  Device device() const { return state_.device(); }
  Dtype compute() const { return compiled().options().compute; }

  // Only if the configuration was read for training, and after allocate().
  StepParts step_parts() { return state_.step_parts(); }
  DataNeeds data_needs() const {
    DataNeeds needs{settings(),   program(),           tokenizer(), world_->launch().local_rank == 0,
                    &*row_files_, &compiled().layout()};
    if (objective_) needs.sequences = objective_->needs();
    return needs;
  }

  // [all-ranks] Allocates the parameters and optimizer states of this rank, and the buffers of the strategies, and
  // makes the executor. The contents are undefined, but for what is shared with the lender.
  void allocate(const Execution& execution = {});
  // [control] For plans: turns it into the session of another rank, as it is before allocate(). Returns false, and
  // changes nothing, if an axis that divides the computation gives that rank another program.
  bool move_to(int rank);
  // [step] Makes the state that `config` asks for, for the same model, task and tokenizer: opens plugins, compiles, and
  // makes the plan of the strategies. The present state can train on, and nothing of it changes. Sends nothing. Throws
  // all errors of keys and options together.
  std::unique_ptr<NextState> make_next(Config config);
  // [step][all-ranks] Makes the communicator of `next`. `number` differs from those of the session's other states.
  void connect(NextState& next, int64_t number);
  // [step] Exchanges the present configuration and state with those of `next`, whose tensors are there.
  void exchange(NextState& next);
  void exchange_config(Config& config);
  // [step][all-ranks] Makes executor and events of `state`, whose parameters and optimizer states are allocated.
  void make_executor(RunState& state, const Execution& execution);

  // [step][all-ranks] Makes loaded, initialized or stepped parameters visible to ops.
  void refresh_parameters();

 private:
  // Throws a config error that names a plugin of the configuration whose instances must stay.
  void require_swappable(const Config& config);
  // Opens the plugins of the passes, compiles, and makes the plan of the strategies, once the mesh is there.
  void make_state(RunState& state, Config& config, RunPlugins& plugins, ResolveOptions resolve,
                  const std::vector<std::string>& candidates);

  Config config_;
  std::optional<const Config> first_config_;  // set by the first exchange(): older objects refer to its settings
  MetricsStore metrics_;
  World alone_;
  World* world_;
  std::optional<RunPlugins> plugins_;
  mutable std::optional<PluginRows> row_files_;
  Collectives* given_collectives_;
  std::optional<RunModel> model_;
  std::optional<RunObjective> objective_;
  const Session* lender_;
  bool freezes_all_;
  const Target target_;
  const ProgramPasses passes_;
  const int64_t num_scores_;
  std::shared_ptr<const PluginTokenizer> tokenizer_;
  DiskForms export_forms_;
  RunState state_;
};

}  // namespace chassis
