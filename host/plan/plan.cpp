// Makes a plan: checks the configuration, then rehearses the first rank of each kind.
#include "host/plan/plan.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "chassis/kind/parallel.h"
#include "host/base/log.hpp"
#include "host/base/log_capture.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/base/printable.hpp"
#include "host/base/slow_phase.hpp"
#include "host/base/units.hpp"
#include "host/compile/recompute.hpp"
#include "host/compile/unit_flops.hpp"
#include "host/plan/plan_rank.hpp"
#include "host/plugin/status.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/session/reference_model.hpp"
#include "host/session/session.hpp"
#include "host/state/rank_kinds.hpp"
#include "host/state/schedule_simulation.hpp"

namespace chassis {
namespace {

std::vector<std::vector<int>> distinct_ranks(const ParameterTable& parameters) {
  std::vector<const Descriptor*> tensors;
  for (const auto& p : parameters.all()) tensors.push_back(&p->descriptor);
  return rank_kinds(tensors, parameters.mesh());
}

std::optional<PlanPipeline> plan_pipeline(const Session& session) {
  const Pipeline& pipeline = session.ranks().plan.pipeline();
  if (!pipeline.divides()) return std::nullopt;
  const std::vector<std::string> units = session.program().unit_names();
  const std::vector<double> flops =
      unit_flops(session.program(), session.parameters(), session.compiled().options().planned(session.program()));
  PlanPipeline out;
  std::vector<StageCost> costs;
  for (int stage = 0; stage < pipeline.num_stages(); ++stage) {
    const UnitRange range = pipeline.units[static_cast<size_t>(stage)];
    const double third = std::accumulate(flops.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                         flops.begin() + static_cast<std::ptrdiff_t>(range.end), 0.0) /
                         3.0;
    const int rank = pipeline.stages().rank(stage);
    const double share = 1.0 / pipeline.stages().num_chunks(rank);
    costs.push_back({third, third, third, 0.0, share, share});
    out.ranks.push_back(rank);
    out.stages.push_back(range.size() == 1 ? units[range.begin] : units[range.begin] + " … " + units[range.end - 1]);
  }
  const Simulation simulation = simulate(pipeline.schedule, costs);
  out.most_in_flight = simulation.peak_activations;
  out.bubble_share = simulation.bubble_share();
  return out;
}

// Rehearses one rank after another in one session, as long as they have the same program.
class Rehearsals {
 public:
  Rehearsals(const Config& config, SessionOptions options) : config_(config), options_(std::move(options)) {}

  RankPlan rehearse(int rank, Recompute recompute, uint64_t header_bytes, bool counts_repeats) {
    if (counts_repeats)
      if (auto plan = chassis::rehearse(session_of(rank), recompute, header_bytes, true)) return *std::move(plan);
    return *chassis::rehearse(session_of(rank), recompute, header_bytes, false);
  }

 private:
  // The session is in the state before a run: nothing is allocated.
  Session& session_of(int rank) {
    if (session_ && session_->move_to(rank)) return *session_;
    options_.rank = rank;
    session_.reset();
    return session_.emplace(config_, options_);
  }

  const Config& config_;
  SessionOptions options_;
  std::optional<Session> session_;
};

// True if the user set a size in [mesh], and none to -1, the remaining ranks.
bool mesh_sets_world_size(const Settings& settings) {
  bool any = false;
  for (const Setting<int64_t>& size : settings.mesh.sizes) {
    if (!size.by_user()) continue;
    if (size < 1) return false;
    any = true;
  }
  return any;
}

std::string strategies_of(const Settings& settings) {
  std::string text;
  for (const PluginTable& strategy : settings.parallel) text += (text.empty() ? "" : ", ") + *strategy.plugin;
  return text.empty() ? "none" : text;
}

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : request_(request), config_(request.config(request.overrides)) {
    const Settings& settings = config_.settings();
    if (request.world_size == 0 && !settings.parallel.empty() && !mesh_sets_world_size(settings))
      throw config_error(settings.parallel, "[[parallel]] divides the run, but nothing says over how many ranks")
          .hint("give --world N, or the sizes of axes in [mesh]");
    plan_.world_size = request.world_size > 0 ? request.world_size : world_size_of(settings);
    plan_.memory_bytes = request.memory_bytes;
  }

  Plan run() {
    int64_t max_blocks = 0;
    {
      Session session(config_, plan_options(request_.plugin_path, plan_.world_size, 0));
      describe(session);
      prove(session);
      groups_ = distinct_ranks(session.parameters());
      plan_.recompute = recompute_setting(session.settings(), session.program());
      max_blocks = max_recomputed_blocks(session.program());
    }
    if (request_.compares_modes) rehearsed(0, Recompute::kNone);
    const log::CapturedWarnings known;  // the first session has already logged them
    if (config_.settings().recompute.mode == RecomputeMode::kAuto && plan_.memory_bytes > 0)
      plan_.recompute = cheapest_that_fits(max_blocks, [&](const Recompute& r) { return fits(r); });
    for (size_t i = 0; i < groups_.size(); ++i) {
      plan_.ranks.push_back(rehearsed(i, plan_.recompute));
      plan_.ranks[i].ranks = groups_[i];
    }
    if (request_.compares_modes)
      for (const RecomputeModeSpec& spec : kRecomputeModes)
        plan_.modes.emplace_back(spec.everywhere, largest_step(spec.everywhere));
    return std::move(plan_);
  }

 private:
  // Returns " rank=16" for an adapter that has such an option, else "".
  static std::string default_rank(PluginRegistry& registry, const std::string& id) {
    try {
      for (const OptionSpec& spec : registry.option_specs("adapter", id))
        if (spec.name == "rank") return " rank=" + spec.default_json;
    } catch (const Error&) {
      // A library that cannot be loaded is refused, with the reason, when its change is planned.
    }
    return "";
  }

  // The home axis of an installed strategy; empty if it cannot be loaded with its default options.
  static std::string home_axis(PluginRegistry& registry, const std::string& id) {
    try {
      const auto instance = registry.create_default("parallel", id);
      return std::string(view_of(instance->interface<chassis_parallel_t>(CHASSIS_PARALLEL_ID).home_axis));
    } catch (const Error&) {
      return "";
    }
  }

  // True also for a strategy without an axis.
  static bool divides_batch_alone(const std::string& axis) {
    const AxisSpec* spec = find_axis(axis);
    return spec == nullptr || spec->divides == Divides::kRows;
  }

  // Finds the strategies that could replace the only one, or serve axes that divide the computation in addition to it.
  void describe_strategies(Session& session) {
    const std::vector<std::string> homes = session.ranks().plan.strategies().home_axes();
    plan_.num_strategies = homes.size();
    std::set<std::string> used, served(homes.begin(), homes.end());
    for (const PluginTable& strategy : session.settings().parallel) used.insert(*strategy.plugin);
    for (const MeshAxis& axis : plan_.axes)
      if (axis.size > 1) served.insert(axis.name);
    for (const AxisSpec& axis : kMeshAxes)
      if (axis.divides != Divides::kRows && served.contains(std::string(axis.name)))
        plan_.longer_axes.emplace_back(axis.name, "");
    PluginRegistry& registry = session.plugins().registry();
    for (const std::string& id : registry.index().ids("parallel")) {
      if (homes.empty() || used.contains(id)) continue;
      const std::string home = home_axis(registry, id);
      const bool divides_batch = divides_batch_alone(home);
      if (homes.size() == 1 && (divides_batch || !divides_batch_alone(homes[0]))) plan_.other_strategies.push_back(id);
      if (!divides_batch && !served.contains(home)) plan_.longer_axes.emplace_back(home, id);
    }
  }

  void describe(Session& session) {
    const Settings& settings = session.settings();
    plan_.name = printable(*settings.run.name);
    plan_.device = session.device().spec().name;
    plan_.mesh = divided_axes(session.mesh());
    plan_.strategies = strategies_of(settings);
    plan_.compute = dtype_name(session.compute());
    plan_.seq_len = settings.train.seq_len;
    plan_.pipeline = plan_pipeline(session);
    plan_.batch = batch_sizes(settings, session.ranks().num_data_ranks());
    plan_.num_parameters = session.parameters().num_elements(false);
    plan_.num_trained = session.parameters().num_elements(true);
    plan_.axes = session.mesh().axes();
    plan_.chooses_recompute = settings.recompute.mode == RecomputeMode::kAuto;
    if (plan_.memory_bytes > 0 && request_.compares_modes) describe_strategies(session);
    if (!session.adapter())
      for (const std::string& id : session.plugins().registry().index().ids("adapter"))
        plan_.adapters.emplace_back(id, id + default_rank(session.plugins().registry(), id));
    if (!session.quant()) plan_.quants = session.plugins().registry().index().ids("quant");
    for (const auto& saving : session.ranks().plan.strategies().savings())
      plan_.savings.emplace_back("parallel." + std::to_string(saving.member) + "." + saving.option, saving.json);
    if (session.objective() != nullptr && session.objective()->needs_reference() &&
        settings.reference.mode == ReferenceMode::kOnline && reference_purpose(session) == Purpose::kLoss)
      plan_.savings.emplace_back("reference.mode", "\"precompute\"");
    if (!session.quant()) return;
    const std::string& quant = settings.quant.plugin;
    for (const OptionSpec& spec : session.plugins().registry().option_specs("quant", quant))
      if (spec.type == OptionType::kBool && spec.default_json == "false")
        plan_.savings.emplace_back("quant." + spec.name, "true");
  }

  void prove(Session& session) {
    plan_.proven_saving = can_check_saving(session);
    if (request_.header_bytes)
      plan_.header_bytes = *request_.header_bytes;
    else if (plan_.proven_saving)
      plan_.header_bytes = check_saving(session);
  }

  // The step memory of the rank that needs most.
  PlanMemory largest_step(const Recompute& recompute) {
    PlanMemory largest;
    for (size_t i = 0; i < groups_.size(); ++i)
      if (const PlanMemory& step = rehearsed(i, recompute).step; step.peak_bytes > largest.peak_bytes) largest = step;
    return largest;
  }

  bool fits(const Recompute& recompute) {
    for (size_t i = 0; i < groups_.size(); ++i)
      if (rehearsed(i, recompute).peak_bytes() > plan_.memory_bytes) return false;
    return true;
  }

  // The plan of the first rank of a group, made once.
  const RankPlan& rehearsed(size_t group, const Recompute& recompute) {
    const auto [known, fresh] = rehearsed_.try_emplace({group, recompute});
    if (!fresh) return known->second;
    if (!rehearsals_) rehearsals_.emplace(config_, plan_options(request_.plugin_path, plan_.world_size, 0));
    known->second = rehearsals_->rehearse(groups_[group][0], recompute, plan_.header_bytes, request_.counts_repeats);
    return known->second;
  }

  const PlanRequest& request_;
  const Config config_;
  std::optional<Rehearsals> rehearsals_;
  std::vector<std::vector<int>> groups_;                        // the ranks of each kind
  std::map<std::pair<size_t, Recompute>, RankPlan> rehearsed_;  // by group
  Plan plan_;
};

}  // namespace

std::string_view plan_category_name(PlanCategory category) {
  constexpr std::array<std::string_view, kNumPlanCategories> names = {
      "parameters", "gradients", "optimizer", "activations", "logits", "gathered", "communication", "other"};
  return names[static_cast<size_t>(category)];
}

std::vector<PlanSample> PlanTimeline::all() const {
  std::vector<PlanSample> out;
  auto repeat = repeats.begin();
  for (size_t i = 0; i < samples.size(); ++i) {
    out.push_back(samples[i]);
    if (repeat == repeats.end() || i + 1 < repeat->end) continue;
    for (int64_t times = 1; times <= repeat->times; ++times)
      for (size_t k = repeat->begin; k < repeat->end; ++k) {
        PlanSample& sample = out.emplace_back(samples[k]);
        for (size_t c = 0; c < kNumPlanCategories; ++c)
          sample.bytes[c] += static_cast<uint64_t>(times * repeat->growth[c]);
      }
    ++repeat;
  }
  return out;
}

uint64_t RankPlan::peak_bytes() const {
  return std::max({step.peak_bytes, start.peak_bytes, load_peak_bytes, export_peak_bytes});
}

const RankPlan& Plan::largest() const {
  return *std::max_element(ranks.begin(), ranks.end(),
                           [](const RankPlan& a, const RankPlan& b) { return a.peak_bytes() < b.peak_bytes(); });
}

std::string divided_axes(const MeshShape& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.size > 1) text += (text.empty() ? "" : ", ") + axis.name + "=" + std::to_string(axis.size);
  return text;
}

int world_size_of(const Settings& settings) {
  int64_t product = 1;
  for (const Setting<int64_t>& size : settings.mesh.sizes) {
    if (size.by_user() && size > 0) product *= size;
    if (product > 1 << 24)
      throw config_error(settings.mesh,
                         "the sizes in [mesh] multiply to more than " + std::to_string(1 << 24) + " ranks");
  }
  return static_cast<int>(product);
}

Recompute recompute_setting(const Settings& settings, const Program& program) {
  const auto spec = std::ranges::find(kRecomputeModes, to_text(*settings.recompute.mode), &RecomputeModeSpec::name);
  if (spec == kRecomputeModes.end() || spec->everywhere == Recompute::kNone) return Recompute::kNone;  // or "auto"
  if (!settings.recompute.blocks.is_set()) return spec->everywhere;
  const int64_t blocks = settings.recompute.blocks, most = max_recomputed_blocks(program);
  if (blocks > most)
    throw config_error(settings.recompute.blocks,
                       fmt::format("recompute.blocks = {}, but the model repeats at most {} blocks", blocks, most))
        .hint("leave it out for all of them");
  return spec->everywhere.in_first(blocks);
}

Recompute cheapest_that_fits(int64_t max_blocks, const std::function<bool(const Recompute&)>& fits) {
  if (fits(Recompute::kNone) || max_blocks == 0) return Recompute::kNone;
  int64_t too_cheap = 0, enough = 2 * max_blocks;
  if (!fits(recompute_of_cost(enough, max_blocks))) return recompute_of_cost(enough, max_blocks);
  while (enough - too_cheap > 1) {
    const int64_t middle = too_cheap + (enough - too_cheap) / 2;
    (fits(recompute_of_cost(middle, max_blocks)) ? enough : too_cheap) = middle;
  }
  return recompute_of_cost(enough, max_blocks);
}

SessionOptions plan_options(const std::vector<std::string>& plugin_path, int world_size, int rank) {
  SessionOptions options;
  options.plugin_path = plugin_path;
  options.target.without_device = true;
  options.target.assume_configured_device = true;
  options.world_size = world_size;
  options.rank = rank;
  return options;
}

Plan make_plan(const PlanRequest& request) { return Planner(request).run(); }

RankPlan plan_rank(const Config& config, const std::vector<std::string>& plugin_path, int world_size, int rank,
                   Device device, Recompute recompute) {
  SessionOptions options = plan_options(plugin_path, world_size, rank);
  options.target.assumed_device = device;
  const SlowPhase phase("planning the memory of a step");
  return Rehearsals(config, std::move(options)).rehearse(rank, recompute, 0, true);
}

}  // namespace chassis
