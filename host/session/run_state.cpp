// Compiles the program, and places parameters and optimizer states.
#include "host/session/run_state.hpp"

#include <memory>
#include <optional>
#include <utility>

#include "host/session/freeze.hpp"

namespace chassis {
namespace {

// The purposes that a run of this use needs. They are resolved before anything is allocated, so errors come early.
std::vector<Purpose> purposes_of(ConfigUse use) {
  switch (use) {
    case ConfigUse::kTraining:
      return {Purpose::kTraining};
    case ConfigUse::kData:  // only the vocabulary and the fields of the program are used
    case ConfigUse::kEvaluation:
    case ConfigUse::kScoring:
      return {Purpose::kLoss};
    case ConfigUse::kGeneration:
      return {Purpose::kLogits};
    case ConfigUse::kWeights:
      break;
  }
  return {};
}

RouterRequest router_request(const Settings::Model& model) {
  RouterRequest request{.measures = true, .aux_weight = std::nullopt, .z_weight = model.router_z_weight};
  if (model.router_aux_weight.is_set()) request.aux_weight = *model.router_aux_weight;
  const bool by_z = model.router_z_weight > 0 && request.aux_weight.value_or(0) == 0;
  request.where = (by_z ? model.router_z_weight : model.router_aux_weight).where();
  return request;
}

// The tokens of a row for which providers are chosen if no key gives them, as in exports and in generation without
// max_new_tokens.
constexpr int64_t kTimeOfAnyLength = 128;

}  // namespace

ResolveOptions resolve_options(const Settings& settings, const Target& target, const World& world) {
  set_rank_threads(settings.run, world);
  ResolveOptions options;
  options.device = choose_device(settings.run, target, world);
  options.compute = compute_dtype(settings.precision, target, options.device);
  options.shared_limit_bytes = shared_memory_limit(options.device);
  // The CPU's time follows the work, so there memory is the better price.
  const Setting<bool>& full_cache = settings.generate.full_cache;
  options.narrows_cache = full_cache.is_set() ? !full_cache : options.device.type != Device::Type::kCpu;
  options.batch = settings.train.micro_batch_size;
  options.time = kTimeOfAnyLength;
  if (settings.generate.max_new_tokens.is_set()) options.time = settings.generate.max_new_tokens;
  if (settings.train.seq_len.is_set()) options.time = settings.train.seq_len;
  // With more tokens, the bytes of a layer may not fit into 64 bits.
  constexpr int64_t kMostTokens = int64_t{1} << 34;
  if (options.batch > kMostTokens / options.time)
    throw config_error(settings.train.micro_batch_size,
                       "train.micro_batch_size × train.seq_len = " + std::to_string(options.batch) + " × " +
                           std::to_string(options.time) + " is more than the " + std::to_string(kMostTokens) +
                           " tokens that one forward pass may have")
        .hint("lower one of them; train.global_batch_size sets how many micro-batches a step has");
  return options;
}

RunState& RunState::operator=(RunState&& next) noexcept {
  if (this == &next) return *this;
  std::destroy_at(this);
  return *std::construct_at(this, std::move(next));
}

void compile_program(RunState& state, const Config& config, RunPlugins& plugins, const RunModel& model,
                     const std::vector<std::string>& candidates, CompileOptions options) {
  const Settings& settings = config.settings();
  state.providers = open_providers(settings, plugins, candidates, options.resolve);
  if (state.model.quant) options.resolve.kernels.push_back(state.model.quant->provider());  // asked last
  options.freeze = [&, also = std::move(options.freeze)](ParameterTable& parameters) {
    freeze(settings.freeze, parameters);
    if (also) also(parameters);
  };
  options.purposes = purposes_of(config.use());
  if (config.use() == ConfigUse::kTraining) options.routers = router_request(settings.model);
  state.model.compile(model.recording(settings.model, config.use()), std::move(options));
  state.disk_mapping = model.plugin().disk_mapping(state.parameters());
}

OptimizerSchema make_optimizer(const Settings::Optimizer& settings, RunPlugins& plugins, ParameterTable& parameters) {
  auto instance = plugins.create(settings.key(), "optimizer", settings.plugin);
  try {
    return OptimizerSchema(std::move(instance), parameters, settings.weight_decay);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kConfig || !error.where().file.empty()) throw;
    throw config_error(settings.plugin, "optimizer.plugin = \"" + *settings.plugin + "\": " + error.message())
        .hint(error.hint_text());
  }
}

void place_shards(RunState& state, const Config& config, std::optional<OptimizerSchema> optimizer) {
  state.model.place(config);
  const Setting<ReduceDtype>& reduce = config.settings().precision.reduce;
  if (!state.model.mesh.strategies->empty() && !state.model.plan->divides_batch() && reduce.by_user() &&
      reduce != ReduceDtype::kFp32)
    throw config_error(reduce,
                       "precision.reduce = \"" + std::string(to_text(*reduce)) +
                           "\" has no effect: no strategy of [[parallel]] sums gradients over rows of the batch")
        .hint("leave it out, or add a strategy that divides the batch");
  if (optimizer) state.optimizer = std::make_unique<PlacedOptimizer>(*std::move(optimizer));
}

}  // namespace chassis
