// Everything that a configuration names, put together: plugins, model, program, parameters, executor, data. The verbs
// of the command line start from here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/config/config.hpp"
#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "host/launch/world.hpp"
#include "host/program/compile.hpp"
#include "host/program/model_plugin.hpp"
#include "host/service/metrics.hpp"
#include "host/session/optimizer_driver.hpp"
#include "host/session/plugin_tokenizer.hpp"
#include "host/session/ranks.hpp"
#include "host/session/run_mesh.hpp"
#include "host/session/run_plugins.hpp"
#include "host/session/step.hpp"

namespace chassis {

struct SessionOptions {
  std::vector<std::string> plugin_path = {};  // --plugin-path
  bool without_device = false;                // `check`: claims and shapes on the CPU, nothing is allocated
  World* world = nullptr;                     // NULL: one process
  bool as_configured = false;        // without a device: claims are for the one that run.device names, there or not
  std::optional<Device> as_on = {};  // without a device: claims are for this one
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
  PluginRegistry& registry() { return plugins_->registry(); }
  MetricsStore& metrics() { return metrics_; }
  CompiledProgram& compiled() { return *compiled_; }
  const Program& program() const { return compiled_->program; }
  ParameterTable& parameters() const { return *compiled_->parameters; }
  World& world() { return *world_; }
  const MeshShape& mesh() const { return mesh_.shape; }
  int rank() const { return mesh_.rank; }
  Ranks ranks() const { return {*mesh_.stack, *communicator_}; }
  // Of a configuration that is read for training.
  StepParts step_parts() { return {*executor_, parameters(), *optimizer_, ranks(), device()}; }
  Executor& executor() { return *executor_; }
  // Of a configuration that is read for training.
  OptimizerDriver& optimizer() { return *optimizer_; }
  // NULL if the configuration names none.
  const PluginTokenizer* tokenizer() const { return tokenizer_.get(); }
  Device device() const { return resolve_.device; }
  Dtype compute() const { return resolve_.compute; }
  int64_t vocab_size() const;
  // The longest sequence that the weights were made for; 0: the model names none.
  int64_t max_positions() const;
  // Counts a warning if rows of so many positions go beyond it.
  void check_positions(int64_t num_positions, const std::string& what) const;

  // Who computes which node of training: {"device": "cpu", "attention": {NODE: PROVIDER}, "kernels": {…}}.
  Json chosen_providers();
  // [all-ranks] Throws a config error that names the first node for which two ranks chose differently.
  void agree_on_providers();
  // What plugins.lock says: what was loaded, and those.
  Json plugins_lock();

  const std::string& model_member() const { return model_member_; }
  // What config.json, or [model] config, says about the dtype of stored weights: "float32" if nothing.
  std::string stored_dtype() const;
  // config.json of the model, as the plugin would have it written.
  std::string model_config() const;
  // How files hold the model's parameters.
  const DiskMapping& disk_mapping() const { return *disk_mapping_; }
  // The tokenizer files of model.path, by name, if [tokenizer] names another than theirs: one whose options lead to no
  // file there.
  std::vector<std::string> other_tokenizer_files() const;
  // SHA-256 of config and parameter shapes: what makes two runs runs of the same model.
  std::string model_hash() const;

  // [all-ranks] Parameters and optimizer states of this rank, and what strategies need; contents are undefined.
  void allocate() { allocate(device()); }
  void allocate(Device device);  // elsewhere: for plans
  // [step][all-ranks] What ops read shows what was loaded, initialized or stepped.
  void publish();

  // An activated instance of the member that the slot names, with the options beside it.
  std::unique_ptr<Instance> create(const std::string& slot_key, const std::string& kind, const std::string& id);

  // Prepares the data that the configuration names; shows progress. `poll` is called now and then and may throw.
  std::unique_ptr<TrainData> open_train_data(const std::function<void()>& poll = {});
  std::vector<std::unique_ptr<EvalData>> open_eval_data(const std::function<void()>& poll = {});
  std::string eval_name(size_t index) const;
  // Throws a config error if a data set has no file, or one that cannot be opened; reads nothing.
  void find_data() const;
  // Throws a storage error if run.output_dir or data.cache_dir cannot be made or written into; writes nothing.
  void check_folders() const;

  // Floating point operations of forward and backward for one token, products alone.
  double flops_per_token() const;

 private:
  void load_plugins(const SessionOptions& options);
  void choose_model();
  void configure_model();
  bool may_run_on_cuda(const SessionOptions& options) const;
  std::string hidden_by(const PluginFile& file, const std::string& id);
  bool may_compete(const PluginFile& file, const SessionOptions& options);
  void find_candidates(const SessionOptions& options);
  void pass_over(const PluginFile& file, const Error& error);  // inside a catch
  void choose_providers();
  void add_candidates(std::vector<OpsProvider>& providers, bool attention, const std::vector<std::string>& named);
  void add_provider(std::vector<OpsProvider>& providers, std::unique_ptr<Instance> instance, bool by_user);
  void resolve_parallel();
  void choose_device(const SessionOptions& options);
  Device device_from(const std::string& setting) const;
  void build_program(const SessionOptions& options);
  void require_tokenizer_of_model() const;
  void freeze(ParameterTable& parameters) const;
  DataConfig data_config() const;
  DataSetConfig data_set(const std::string& key) const;

  Config config_;
  MetricsStore metrics_;
  World alone_;
  World* world_ = &alone_;
  std::optional<RunPlugins> plugins_;
  std::unique_ptr<Communicator> communicator_;  // outlives the stack's shards
  RunMesh mesh_;
  std::string model_member_, model_config_text_;
  std::unique_ptr<Instance> model_instance_;
  std::optional<ModelPlugin> model_;
  std::unique_ptr<PluginTokenizer> tokenizer_;
  std::vector<std::string> candidates_;  // of kind ops, that "auto" compares; loaded, by name
  std::vector<std::unique_ptr<Instance>> providers_;
  ResolveOptions resolve_;
  std::optional<CompiledProgram> compiled_;
  std::optional<DiskMapping> disk_mapping_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<OptimizerDriver> optimizer_;
};

}  // namespace chassis
