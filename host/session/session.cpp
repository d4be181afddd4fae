// Builds a session in order: plugins, model, mesh, program, tokenizer, optimizer, shards.
#include "host/session/session.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "host/base/log.hpp"
#include "host/base/slow_phase.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/config/task_table.hpp"
#include "host/graph/op_table.hpp"
#include "host/plugin/search.hpp"
#include "host/service/memory.hpp"
#include "host/session/fields.hpp"
#include "host/session/freeze.hpp"
#include "host/text/run_tokenizer.hpp"

namespace chassis {
namespace {

// Runs `action`. An error that it throws becomes a problem of the configuration, so that all problems are reported
// together. An internal error is thrown at once.
template <class Action>
void collect(Config& config, const std::string& key, const SourcePosition& where, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInternal) throw;
    const bool placed = !error.where().file.empty() || where.file.empty();
    config.add_problem(key, placed ? error : Error(error.code(), where, error.message()).hint(error.hint_text()));
  }
}

bool names_model(const Settings::Model& model) {
  return model.path.is_set() || (model.plugin.is_set() && model.config.is_set());
}

// Checks the options of plugins; the host's own keys were checked before. True if the model's options are correct.
bool check_plugin_options(Config& config, PluginRegistry& registry, const std::string& model) {
  bool model_is_correct = false;
  for (const PluginSlot& slot : config.plugin_slots()) {
    const std::string id = slot.kind == "model" ? model : slot.plugin;
    const bool is_auto = (slot.kind == "comm" || slot.kind == "ops") && id == "auto";
    if (id.empty() || is_auto) continue;
    const size_t before = config.num_problems();
    collect(config, slot.key + ".plugin", slot.where,
            [&] { config.check_plugin_options(slot.key, id, registry.option_specs(slot.kind, id)); });
    if (slot.kind == "model") model_is_correct = config.num_problems() == before;
  }
  return model_is_correct;
}

// Throws if a directory that this program wrote has changed since. Its small files are read before its weights are.
void compare_directories(const Settings& settings) {
  std::set<std::string> compared;
  for (const Setting<std::string>* path : {&settings.model.path, &settings.adapter.path, &settings.tokenizer.path}) {
    if (!path->is_set() || !compared.insert(*path).second) continue;
    try {
      compare_with_manifest(*path);
    } catch (const DamagedCheckpoint&) {
      throw;
    } catch (const Error&) {
      // A file that cannot be read is reported with its key when it is needed.
    }
  }
}

// Generation reads logits, whatever the objective of training is; a model with a head of scores has none.
bool has_objective(const Config& config) {
  const TaskSpec& task = spec_of(config.settings().train.task);
  if (task.objective.empty()) return false;
  if (config.use() != ConfigUse::kGeneration) return true;
  if (!task.has_scores) return false;
  throw config_error(
      config.settings().train.task,
      "train.task = \"" + std::string(to_text(task.task)) +
          "\" trains a head of scores in place of the head over the vocabulary: the model generates no text")
      .hint("`chassis score` gives the scores of texts");
}

// A session for weights alone has the parameters of its files, unless it adds a head.
std::optional<ObjectiveRequest> request_of(const Config& config, int64_t num_scores) {
  if (config.use() != ConfigUse::kWeights) return ObjectiveRequest{};
  if (num_scores == 0) return std::nullopt;
  return ObjectiveRequest{ObjectiveOutput::kScores, num_scores};
}

PluginIndex index_of(const SettingList& folders, const std::vector<std::string>& plugin_path) {
  return PluginIndex(plugin_folders(plugin_path, folders, folders.where()));
}

}  // namespace

namespace {

void count_experts_without_adapter(const Program& program) {
  size_t count = 0, extended = 0;
  for (const Chain& chain : program.chains)
    for (const uint32_t type : chain.blocks) {
      const BlockType& block = program.blocks[type];
      for (const Op& op : block.ops) {
        if (op.spec().placement != OpPlacement::kGroupedLinear || block.slots[op.params[0]].added) continue;
        const std::string& weight = block.slots[op.params[0]].name;
        const std::string module = weight.substr(0, weight.rfind('.') + 1);
        extended += std::ranges::any_of(
            block.slots, [&](const ParameterSlot& slot) { return slot.added && slot.name.starts_with(module); });
        ++count;
      }
    }
  if (extended < count)
    counted_warning("linears of experts without an adapter",
                    fmt::format("the adapter extends {} of the {} linears of experts; the others stay frozen",
                                extended == 0 ? "none" : std::to_string(extended), count));
}

}  // namespace

Session::Session(Config config, const SessionOptions& options)
    : config_(std::move(config)),
      world_(options.world ? options.world : &alone_),
      given_collectives_(options.collectives),
      lender_(options.lender),
      freezes_all_(options.freezes_all),
      target_(options.target),
      passes_(options.passes),
      num_scores_(options.num_scores) {
  install_memory_allocator();
  compare_directories(settings());
  const SlowPhase phase("compiling the program and checking its providers");

  const Settings::Model& model = settings().model;
  LoadPolicy policy = load_policy(settings());
  policy.device_versions = device_versions_of(settings().run, options.target);
  collect(config_, "", {}, [&] {
    plugins_.emplace(config_, metrics_, index_of(settings().plugins.path, options.plugin_path), std::move(policy));
  });
  if (!plugins_) config_.throw_if_problems();
  PluginRegistry& registry = plugins_->registry();
  row_files_.emplace(registry);

  ModelSource source;
  TokenizerChoice tokenizer;
  std::vector<std::string> candidates;
  // If no model is named, the configuration's own checks report the missing key.
  if (names_model(model)) {
    if (model.plugin.is_set()) source.member = model.plugin;
    collect(config_, model.plugin.key(), {}, [&] { source = find_model(model, registry); });
  }
  const bool can_configure = check_plugin_options(config_, registry, source.member);
  // A missing model directory has no tokenizer either, which need not be reported.
  std::error_code ignored;
  const bool has_directory = !model.path.is_set() || std::filesystem::is_directory(*model.path, ignored);
  collect(config_, settings().tokenizer.key(), {}, [&] {
    if (!has_directory && !settings().tokenizer.path.is_set() && !settings().tokenizer.plugin.is_set()) return;
    tokenizer = find_tokenizer(config_, registry);
    if (tokenizer.is_default)
      config_.check_plugin_options(settings().tokenizer.key(), tokenizer.member,
                                   registry.option_specs("tokenizer", tokenizer.member));
  });
  collect(config_, settings().kernels.key(), {},
          [&] { candidates = find_candidates(config_, registry, options.target); });
  if (can_configure)
    collect(config_, model.source().key(), {}, [&] { model_.emplace(config_, *plugins_, std::move(source)); });
  config_.finish();

  const MeshPlace place{*world_, options.world_size, options.rank};
  PlacedModel& placed = state_.model;
  placed.mesh = make_mesh(settings(), *plugins_, place);
  ResolveOptions resolve = resolve_options(settings(), options.target, *world_);
  state_.communicator = make_communicator(config_, *plugins_, placed.mesh, place, resolve.device);
  if (has_objective(config_)) objective_.emplace(settings(), *plugins_);
  make_state(state_, config_, *plugins_, std::move(resolve), candidates);
  if (adapter() != nullptr && config_.use() == ConfigUse::kTraining) count_experts_without_adapter(program());
  const auto make_tokenizer = [&](const std::string& member) {
    return plugins_->create(settings().tokenizer.key(), "tokenizer", member);
  };
  if (lender_ != nullptr)
    tokenizer_ = lender_->tokenizer_;
  else
    tokenizer_ = open_tokenizer(config_, make_tokenizer, tokenizer, vocab_size(program()));
  if (lender_ == nullptr && tokenizer.is_default && options.world_size == 0)
    log::info("tokenizer '{}' of {}: {} ids{}", tokenizer.member, tokenizer.directory, tokenizer_->vocab_size(),
              tokenizer_->chat_template().empty() ? "" : ", with a chat template");
  if (const Pipeline& pipeline = placed.plan->pipeline(); pipeline.divides() && !place.is_planned())
    world_->expect_same("pipeline", pipeline.text());
  state_.collectives = std::make_unique<AxisCollectives>(*state_.communicator);
}

Session::~Session() = default;

void Session::make_state(RunState& state, Config& config, RunPlugins& plugins, ResolveOptions resolve,
                         const std::vector<std::string>& candidates) {
  const Settings& settings = config.settings();
  state.model.open_passes(settings, plugins, *model_);
  if (const RunQuant* const quant = state.model.quant.get(); quant != nullptr && quant->is_stored())
    config.drop_defaults("quant");  // the settings in the model's files apply
  CompileOptions options{.objective = objective_ ? objective_->request() : request_of(config, num_scores_),
                         .passes = passes_,
                         .resolve = std::move(resolve)};
  if (freezes_all_) options.freeze = freeze_all;
  compile_program(state, config, plugins, *model_, candidates, std::move(options));
  std::optional<OptimizerSchema> optimizer;
  if (config.use() == ConfigUse::kTraining)
    optimizer.emplace(make_optimizer(settings.optimizer, plugins, state.parameters()));
  place_shards(state, config, std::move(optimizer));
}

// All of these get new instances, also where their keys do not change.
void Session::require_swappable(const Config& config) {
  constexpr std::string_view kReplaced[] = {"ops", "parallel", "comm", "adapter", "quant", "optimizer", "format"};
  const PluginIndex& index = plugins_->registry().index();
  for (const PluginSlot& slot : config.plugin_slots()) {
    if (slot.plugin.empty() || slot.plugin == "auto" || std::ranges::find(kReplaced, slot.kind) == std::end(kReplaced))
      continue;
    if (const Manifest& manifest = index.at(slot.kind, slot.plugin).manifest; !manifest.swappable)
      throw Error(ExitCode::kConfig, slot.where,
                  slot.key + ": " + manifest.label() +
                      " cannot be replaced while a run trains: its manifest does not say swappable=1")
          .hint("save, stop, and start the run again; or ask its author whether instances may be replaced");
  }
}

std::unique_ptr<NextState> Session::make_next(Config config) {
  auto next = std::make_unique<NextState>(std::move(config));
  PluginRegistry& registry = plugins_->registry();
  check_plugin_options(next->config, registry, model_->member());
  if (const Settings::Tokenizer& tokenizer = settings().tokenizer; tokenizer_ && !tokenizer.plugin.is_set())
    next->config.check_plugin_options(tokenizer.key(), tokenizer_->id(),
                                      registry.option_specs("tokenizer", tokenizer_->id()));
  std::vector<std::string> candidates;
  collect(next->config, settings().kernels.key(), {},
          [&] { candidates = find_candidates(next->config, registry, target_); });
  next->config.finish();
  require_swappable(config_);
  require_swappable(next->config);
  RunPlugins& plugins = next->plugins.emplace(*plugins_, next->config);
  const MeshPlace place{*world_, 0, 0};
  next->state.model.mesh = make_mesh(next->config.settings(), plugins, place);
  ResolveOptions resolve = resolve_options(next->config.settings(), target_, *world_);
  next->backend = open_comm_backend(next->config, plugins, next->state.model.mesh, place, resolve.device);
  make_state(next->state, next->config, plugins, std::move(resolve), candidates);
  return next;
}

void Session::connect(NextState& next, int64_t number) {
  const RunMesh& mesh = next.state.model.mesh;
  next.state.communicator = std::make_unique<Communicator>(std::move(next.backend), *world_, mesh.shape, mesh.rank,
                                                           next.state.device(), fmt::format("{}:", number));
  next.state.collectives = std::make_unique<AxisCollectives>(*next.state.communicator);
}

void Session::exchange_config(Config& config) {
  if (!first_config_) first_config_.emplace(config_);
  std::swap(config_, config);
}

void Session::exchange(NextState& next) {
  exchange_config(next.config);
  RunState state = std::move(state_);
  state_ = std::move(next.state);
  next.state = std::move(state);
  plugins_->services().set_communicator(state_.communicator.get());
}

void Session::make_executor(RunState& state, const Execution& execution) {
  // Plugins that strategies and optimizers use ask for the communicator of the state in which they are.
  plugins_->services().set_communicator(state.communicator.get());
  state.model.make_executor(*state.communicator, state.collectives.get(), execution);
  if (state.optimizer && !state.driver)
    state.driver = std::make_unique<OptimizerDriver>(*state.optimizer, state.device(), *state.communicator,
                                                     OptimizerDriver::StatesExist{});
}

void Session::allocate(const Execution& execution) {
  const Device device = execution.rehearsal.value_or(this->device());
  state_.driver.reset();  // there is at most one
  state_.model.allocate(*state_.communicator,
                        given_collectives_ != nullptr ? given_collectives_ : state_.collectives.get(), execution,
                        lender_ != nullptr ? &lender_->parameters() : nullptr);
  if (state_.optimizer)
    state_.driver = std::make_unique<OptimizerDriver>(*state_.optimizer, device, *state_.communicator);
}

bool Session::move_to(int rank) {
  PlacedModel& placed = state_.model;
  RunMesh& mesh = placed.mesh;
  const MeshShape::Coordinates from = mesh.shape.coordinates(mesh.rank), to = mesh.shape.coordinates(rank);
  for (const LayoutAxis& axis : compiled().layout().axes) {
    const auto index = static_cast<size_t>(mesh.shape.find(axis.name));
    if (from[index] != to[index]) return false;
  }
  state_.driver.reset();
  placed.release();
  state_.collectives.reset();
  mesh.rank = rank;
  mesh.strategies = std::make_shared<Strategies>(stack_members(settings(), *plugins_));
  placed.plan = std::make_unique<StackPlan>(placed.plan->at_rank(rank, mesh.strategies, program(), parameters()));
  placed.plan->place(parameters());
  state_.communicator =
      make_communicator(config_, *plugins_, mesh, MeshPlace{*world_, mesh.shape.world_size(), rank}, device());
  state_.collectives = std::make_unique<AxisCollectives>(*state_.communicator);
  return true;
}

void Session::refresh_parameters() { state_.model.events->refresh(); }

}  // namespace chassis
