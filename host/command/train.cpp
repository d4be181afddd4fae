// `chassis train`: trains or fine-tunes a model.
#include "host/command/command.hpp"
#include "host/train/run.hpp"

namespace chassis {

Verb add_train(CLI::App& app) {
  auto arguments = std::make_shared<ConfigArguments>();
  arguments->add_to(app);
  arguments->add_ranks_to(app);
  return {[=] { return arguments->run_ranks(); },
          [=] { return run_training(arguments->load(), arguments->plugin_path); }};
}

}  // namespace chassis
