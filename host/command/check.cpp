// `chassis check`: all checks of a run that need no device and read no weights, and of the data only the first rows.
#include <fmt/format.h>

#include <cstdio>

#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/command/command.hpp"
#include "host/plan/plan.hpp"
#include "host/program/graph.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/session/session.hpp"
#include "host/train/samples.hpp"

namespace chassis {
namespace {

void print_summary(Session& session) {
  const ResolvedProgram& program = session.executor().resolved(Purpose::kTraining);
  const auto& parameters = session.parameters();
  std::fprintf(output(), "model       %zu units, %s parameters, %s trained\n", program.units.size(),
               count_text(static_cast<double>(parameters.num_elements(false))).c_str(),
               count_text(static_cast<double>(parameters.num_elements(true))).c_str());
  for (Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull})
    std::fprintf(output(), "activations %s with recompute = %s\n",
                 bytes_text(session.compiled().planned_activation_bytes(mode)).c_str(), text(mode).c_str());
}

constexpr double kLargestUsualRate = 10.0;  // higher than those of plain SGD

void warn_of_learning_rate(const Setting<double>& setting) {
  const double rate = setting;
  const std::string what = fmt::format("{}: optimizer.lr = {:g}", setting.where().text(), rate);
  if (rate == 0) counted_warning("optimizer.lr", what + " trains nothing");
  if (rate > kLargestUsualRate)
    counted_warning("optimizer.lr", what + " is far above usual rates; is a \"-\" missing, as in 3e-3?");
}

}  // namespace

Verb add_check(CLI::App& app) {
  auto arguments = std::make_shared<ConfigArguments>();
  auto graph = std::make_shared<bool>(false), resolved = std::make_shared<bool>(false);
  auto without_data = std::make_shared<bool>(false);
  arguments->add_to(app);
  app.add_flag("--graph", *graph, "print the resolved program, and what each pass did to it or refused");
  app.add_flag("--resolved", *resolved, "print the whole configuration with the origin of each key");
  app.add_flag("--without-data", *without_data,
               "data files, and the folders that the run writes to, need not be on this machine");
  return [=] {
    // Rank 0 is checked for a mesh of several ranks.
    Config config = arguments->load();
    const int num_ranks = world_size_of(config.settings());
    SessionOptions options{.plugin_path = arguments->plugin_path,
                           .target = {.without_device = true, .assume_configured_device = true}};
    if (num_ranks > 1) options.world_size = num_ranks;
    Session session(std::move(config), options);
    const Settings& settings = session.settings();
    session.compiled().set_recompute(
        recompute_setting(settings, session.executor()),
        settings.recompute.mode == "auto" ? "recompute.mode = \"auto\" chooses by the memory of the run" : "");
    if (*resolved) std::fprintf(output(), "%s", session.config().resolved_toml().c_str());
    if (*graph) std::fprintf(output(), "%s", printable_lines(graph_text(session.compiled())).c_str());
    print_summary(session);
    if (num_ranks > 1)
      std::fprintf(output(), "mesh        %d ranks (%s)\n", num_ranks, divided_axes(session.mesh()).c_str());
    warn_of_learning_rate(settings.optimizer.lr);
    check_positions(session.model(), settings.train.seq_len, "train.seq_len");
    warn_of_unused_samples(settings);
    Samples{session};  // throws if a prompt cannot become ids
    if (*without_data) {
      data_config(session.data_needs());  // throws if the chat template does not fit the tokenizer
    } else {
      find_data(session.data_needs());
      check_folders(settings);
      try_first_rows(session.data_needs());
    }
    if (settings.model.path.is_set() && settings.exports.when != "never")
      files_to_copy(settings.model.path, {"config.json"});  // throws if one cannot be read
    if (session.device().type == Device::Type::kCpu) session.optimizer().try_step(settings.optimizer.lr);
    if (can_check_saving(session)) {
      check_saving(session);
      compare_with_model(session);
    } else {
      std::fprintf(output(), "saving      not proven: too many shards to prove it here\n");
    }
    std::fprintf(output(), "ok          %s\n", printable(arguments->file, 4096).c_str());
    return 0;
  };
}

}  // namespace chassis
