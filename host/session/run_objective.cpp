// Opens the plugin of [objective], and compares it with the keys that it must fit.
#include "host/session/run_objective.hpp"

#include <fmt/format.h>

#include <string>

#include "host/base/error.hpp"
#include "host/config/task_table.hpp"

namespace chassis {
namespace {

// The formats of data whose rows are units of that kind.
DataFormat format_of(uint32_t units) {
  switch (units) {
    case CHASSIS_OBJECTIVE_PAIRS:
      return DataFormat::kPreference;
    case CHASSIS_OBJECTIVE_LABELLED:
      return DataFormat::kLabelled;
    case CHASSIS_OBJECTIVE_TEXTS:
      return DataFormat::kClassification;
    case CHASSIS_OBJECTIVE_ROLLOUTS:
      return DataFormat::kRollouts;
    default:
      return DataFormat::kDistillation;
  }
}

void check_task(const Settings& settings, const ObjectiveDesc& desc) {
  const bool takes_scores = desc.scores();
  if (takes_scores == spec_of(settings.train.task).has_scores) return;
  throw config_error(settings.objective.plugin,
                     fmt::format("objective '{}' is computed from {}, and train.task = \"{}\" trains {}",
                                 *settings.objective.plugin, takes_scores ? "scores" : "log-probabilities of tokens",
                                 to_text(*settings.train.task), takes_scores ? "no head of scores" : "scores alone"))
      .hint(takes_scores ? "set train.task = \"reward\" or \"classify\""
                         : "set train.task = \"preference\", \"policy\" or \"distill\"");
}

void check_formats(const Settings& settings, const ObjectiveDesc& desc) {
  const DataFormat wanted = format_of(desc.units);
  const auto check = [&](const Settings::DataSet& set) {
    if (set.format == DataFormat::kPreference && desc.units == CHASSIS_OBJECTIVE_LABELLED) {
      if (set.split_pairs) return;
      throw config_error(set.format, fmt::format("{} = \"preference\", but objective '{}' takes labelled answers",
                                                 set.format.key(), *settings.objective.plugin))
          .hint(fmt::format("{}.split_pairs = true makes each chosen answer a good one and each rejected answer a bad "
                            "one",
                            set.key()));
    }
    if (set.split_pairs)
      throw config_error(set.split_pairs,
                         fmt::format("{} = true, but objective '{}' compares the two answers of a pair",
                                     set.split_pairs.key(), *settings.objective.plugin))
          .hint("remove it, or choose an objective of labelled answers");
    if (set.format == wanted) return;
    throw config_error(set.format,
                       fmt::format("{} = \"{}\", but objective '{}' takes rows of format \"{}\"", set.format.key(),
                                   to_text(*set.format), *settings.objective.plugin, to_text(wanted)))
        .hint(fmt::format("set {} = \"{}\", or choose another objective", set.format.key(), to_text(wanted)));
  };
  for (const Settings::TrainSet& set : settings.data.train) check(set);
  for (const Settings::EvalSet& set : settings.data.eval) check(set);
}

void check_reference(const Settings& settings, const ObjectiveDesc& desc) {
  if (desc.needs_reference()) return;
  const Settings::Reference& reference = settings.reference;
  const auto refuse = [&](const ConfigEntry& entry) {
    throw config_error(entry, fmt::format("{} has no effect: objective '{}' compares with no reference", entry.key(),
                                          *settings.objective.plugin));
  };
  if (reference.mode != ReferenceMode::kOnline) refuse(reference.mode);
  if (reference.path.is_set()) refuse(reference.path);
}

void check_metric(const Settings& settings, const ObjectiveDesc& desc) {
  const Setting<std::string>& metric = settings.eval.metric;
  if (metric == "loss") return;
  std::string known = "\"loss\"";
  for (const ObjectiveMetric& other : desc.metrics) {
    if (other.name == *metric && other.better != CHASSIS_BETTER_NEITHER) return;
    if (other.better != CHASSIS_BETTER_NEITHER) known += fmt::format(", \"{}\"", other.name);
  }
  throw config_error(metric, fmt::format("eval.metric = \"{}\" is not a metric of objective '{}' that can be better or "
                                         "worse: there are {}",
                                         *metric, *settings.objective.plugin, known));
}

}  // namespace

RunObjective::RunObjective(const Settings& settings, RunPlugins& plugins)
    : instance_(plugins.create(settings.objective.key(), "objective", settings.objective.plugin)), plugin_(*instance_) {
  check_task(settings, desc());
  check_formats(settings, desc());
  check_reference(settings, desc());
  check_metric(settings, desc());
}

ObjectiveRequest RunObjective::request() const {
  if (desc().scores()) return {ObjectiveOutput::kScores, static_cast<int64_t>(desc().num_scores)};
  if (desc().needs_teacher())
    return {ObjectiveOutput::kTopLogps, 0, static_cast<int64_t>(desc().top_k), desc().temperature};
  return {ObjectiveOutput::kTokenLogps};
}

}  // namespace chassis
