// `chassis check`: all checks of a run that need no device and no values of weights, and only the first rows of the
// data.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/command/command.hpp"
#include "host/command/json_document.hpp"
#include "host/compile/graph_text.hpp"
#include "host/plan/plan.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/save/saver.hpp"
#include "host/save/weights.hpp"
#include "host/session/reference_model.hpp"
#include "host/session/session.hpp"
#include "host/train/generation_sets.hpp"
#include "host/train/run_report.hpp"
#include "host/train/samples.hpp"

namespace chassis {
namespace {

struct CheckArguments {
  ConfigArguments config;
  bool graph = false, resolved = false, without_data = false, as_json = false;
};

struct CheckSummary {
  size_t num_units = 0;
  int64_t num_parameters = 0, num_trained = 0;
  std::vector<std::pair<std::string, uint64_t>> activations = {};  // bytes by mode of recomputing
  int num_ranks = 1;
  std::string axes = {};  // "dp_shard 4, tp 2"
};

CheckSummary summary_of(Session& session, int num_ranks) {
  const auto& parameters = session.parameters();
  CheckSummary summary{.num_units = session.compiled().resolved(Purpose::kTraining).units.size(),
                       .num_parameters = static_cast<int64_t>(parameters.num_elements(false)),
                       .num_trained = static_cast<int64_t>(parameters.num_elements(true)),
                       .num_ranks = num_ranks};
  for (const RecomputeModeSpec& spec : kRecomputeModes)
    summary.activations.emplace_back(spec.name, session.compiled().planned_activation_bytes(spec.everywhere));
  if (num_ranks > 1) summary.axes = divided_axes(session.mesh());
  return summary;
}

void print_summary(const CheckSummary& summary) {
  std::fprintf(output(), "model       %zu units, %s parameters, %s trained\n", summary.num_units,
               count_text(static_cast<double>(summary.num_parameters)).c_str(),
               count_text(static_cast<double>(summary.num_trained)).c_str());
  for (const auto& [mode, bytes] : summary.activations)
    std::fprintf(output(), "activations %s with recompute = %s\n", bytes_text(bytes).c_str(), mode.c_str());
  if (summary.num_ranks > 1)
    std::fprintf(output(), "mesh        %d ranks (%s)\n", summary.num_ranks, summary.axes.c_str());
}

Json check_json(const CheckArguments& arguments, Session& session, const CompiledProgram& program,
                const CheckSummary& summary, bool saving_proven) {
  Json activations = Json::object(), mesh = Json::object(), warnings = Json::array();
  for (const auto& [mode, bytes] : summary.activations) activations[mode] = bytes;
  if (summary.num_ranks > 1)
    for (const MeshAxis& axis : session.mesh().axes()) mesh[axis.name] = axis.size;
  for (const auto& [what, times] : counted_warnings()) warnings.push_back({{"what", what}, {"times", times}});
  Json out = {{"file", arguments.config.file},   {"ok", true},
              {"units", summary.num_units},      {"parameters", summary.num_parameters},
              {"trained", summary.num_trained},  {"activation_bytes", std::move(activations)},
              {"world_size", summary.num_ranks}, {"mesh", std::move(mesh)},
              {"saving_proven", saving_proven},  {"warnings", std::move(warnings)}};
  if (arguments.resolved) out["resolved"] = session.config().json();
  if (arguments.graph) out["graph"] = graph_text(program);
  return out;
}

constexpr double kLargestUsualRate = 10.0;  // above those of plain SGD

void warn_of_learning_rate(const Settings& settings) {
  const Setting<double>& setting = settings.optimizer.lr;
  const double rate = setting;
  const std::string what = fmt::format("{}: optimizer.lr = {:g}", setting.where().text(), rate);
  if (rate == 0) counted_warning("optimizer.lr", what + " trains nothing");
  if (rate > kLargestUsualRate)
    counted_warning("optimizer.lr", what + " is far above usual rates; is a \"-\" missing, as in 3e-3?");
  // With epochs, only the data shows the number of steps.
  if (const int64_t steps = settings.run.max_steps; rate != 0 && steps > 0)
    if (const std::string text = rate_warning(settings, schedule_of(settings, steps), 0); !text.empty())
      counted_warning(text.substr(0, text.find(' ')), text);
}

}  // namespace

Verb add_check(CLI::App& app) {
  auto arguments = std::make_shared<CheckArguments>();
  arguments->config.add_to(app);
  app.add_flag("--graph", arguments->graph, "print the resolved program, and what each pass did to it or refused");
  app.add_flag("--resolved", arguments->resolved, "print the whole configuration with the origin of each key");
  app.add_flag("--without-data", arguments->without_data,
               "data files, and the folders that the run writes to, need not be on this machine");
  add_json(app, arguments->as_json);
  return [=] {
    // For a mesh of several ranks, checks rank 0.
    Config config = arguments->config.load();
    const int num_ranks = world_size_of(config.settings());
    SessionOptions options{.plugin_path = arguments->config.plugin_path,
                           .target = {.without_device = true, .assume_configured_device = true}};
    if (num_ranks > 1) options.world_size = num_ranks;
    Session session(std::move(config), options);
    const Settings& settings = session.settings();
    const CompiledProgram program = session.compiled().with_recompute(
        recompute_setting(settings, session.program()),
        settings.recompute.mode == RecomputeMode::kAuto ? "recompute.mode = \"auto\" chooses by the memory of the run"
                                                        : "");
    const bool as_text = !arguments->as_json;
    const CheckSummary summary = summary_of(session, num_ranks);
    if (as_text && arguments->resolved) std::fprintf(output(), "%s", session.config().resolved_toml().c_str());
    if (as_text && arguments->graph) std::fprintf(output(), "%s", printable_lines(graph_text(program)).c_str());
    if (as_text) print_summary(summary);
    warn_of_learning_rate(settings);
    check_seq_len(session.model(), session.program(), settings.train.seq_len);
    warn_of_unused_samples(settings);
    if (session.objective() != nullptr && session.objective()->needs_reference()) reference_purpose(session);
    require_savable(session);
    Samples{session};  // throws if a prompt cannot become ids
    if (!arguments->without_data) GenerationSets{session};
    if (arguments->without_data) {
      data_config(session.data_needs());  // throws if the chat template does not fit the tokenizer
    } else {
      find_data(session.data_needs());
      check_folders(settings);
      try_first_rows(session.data_needs());
    }
    if (settings.model.path.is_set() && settings.exports.when != ExportWhen::kNever)
      files_to_copy(settings.model.path, {"config.json"});  // throws if one cannot be read
    if (session.device().type == Device::Type::kCpu) session.optimizer().schema().try_step(settings.optimizer.lr);
    const bool saving_proven = can_check_saving(session);
    if (saving_proven) {
      check_saving(session);
      compare_with_model(session);
    } else if (as_text) {
      std::fprintf(output(), "saving      not proven: too many shards to prove it here\n");
    }
    check_weights(session);
    check_reference_weights(session);
    if (as_text)
      std::fprintf(output(), "ok          %s\n", printable(arguments->config.file, 4096).c_str());
    else
      print_document("check", check_json(*arguments, session, program, summary, saving_proven));
    return 0;
  };
}

}  // namespace chassis
