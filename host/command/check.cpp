// `chassis check`: everything that can be known without a device and without reading data or weights.
#include <cstdio>

#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/command/command.hpp"
#include "host/program/graph.hpp"
#include "host/train/plan.hpp"
#include "host/train/saved_tensors.hpp"
#include "host/train/session.hpp"

namespace chassis {
namespace {

void print_summary(Session& session) {
  const ResolvedProgram& program = session.executor().resolved(Purpose::kTraining);
  const auto& parameters = session.parameters();
  std::printf("model       %zu units, %s parameters, %s trained\n", program.units.size(),
              count_text(static_cast<double>(parameters.num_elements(false))).c_str(),
              count_text(static_cast<double>(parameters.num_elements(true))).c_str());
  for (Recompute mode : {Recompute::kNone, Recompute::kFull})
    std::printf("activations %s with recompute = %s\n", bytes_text(session.executor().planned_activation_bytes(mode)).c_str(),
                mode == Recompute::kNone ? "none" : "full");
}

}  // namespace

Verb add_check(CLI::App& app) {
  auto arguments = std::make_shared<ConfigArguments>();
  auto graph = std::make_shared<bool>(false), resolved = std::make_shared<bool>(false);
  arguments->add_to(app);
  app.add_flag("--graph", *graph, "print the resolved program");
  app.add_flag("--resolved", *resolved, "print the whole configuration with the origin of each key");
  return [=] {
    // A mesh of several ranks is proven as rank 0 of it sees it.
    Config config = arguments->load();
    const int num_ranks = world_size_of(config);
    SessionOptions options{.plugin_path = arguments->plugin_path, .without_device = true};
    if (num_ranks > 1) options.world_size = num_ranks;
    Session session(std::move(config), options);
    const ResolvedProgram& program = session.executor().resolved(Purpose::kTraining);
    if (*resolved) std::printf("%s", session.config().resolved_toml().c_str());
    if (*graph)
      std::printf("%s", printable_lines(graph_text(session.program(), session.layout(), program, session.resolve_options())).c_str());
    print_summary(session);
    if (num_ranks > 1) std::printf("mesh        %d ranks (%s)\n", num_ranks, divided_axes(session.mesh()).c_str());
    prove_saving(session);
    compare_with_model(session);
    std::printf("ok          %s\n", printable(arguments->file, 4096).c_str());
    return 0;
  };
}

}  // namespace chassis
