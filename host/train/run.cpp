// A run in order: prepare, train, save, evaluate, export, report.
#include "host/train/run.hpp"

#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/slow_phase.hpp"
#include "host/session/join.hpp"
#include "host/session/replicas.hpp"
#include "host/session/session.hpp"
#include "host/train/ending.hpp"
#include "host/train/live_swap.hpp"
#include "host/train/loop.hpp"
#include "host/train/post_mortem.hpp"
#include "host/train/preparation.hpp"
#include "host/train/prepared_run.hpp"
#include "host/train/signals.hpp"

namespace chassis {
namespace {

class Run {
 public:
  Run(Config config, const std::vector<std::string>& plugin_path, World& world)
      : config_(config),
        plugin_path_(plugin_path),
        world_(world),
        session_(std::move(config), {.plugin_path = plugin_path, .world = &world}) {}

  // Reports a failure before anything is destroyed: otherwise the other ranks would see closed connections first.
  int operator()() {
    try {
      return world_.run([this] { return train_or_report(); });
    } catch (Error& error) {
      if (run_.directory) post_mortem_.add_communication_failure(error, run_.directory->path());
      throw;
    }
  }

 private:
  // Running out of memory is this rank's failure alone; the other ranks are told where its report is.
  int train_or_report() {
    try {
      return train();
    } catch (const RemoteError&) {
      throw;
    } catch (...) {
      Error error = current_error();
      if (error.code() != ExitCode::kOutOfMemory || !run_.directory || world_.is_failure_of_another(error)) throw;
      post_mortem_.add_out_of_memory(error, run_.directory->path());
      throw error;
    }
  }

  int train() {
    const RunInputs inputs{config_, plugin_path_, session_, replicas_, signals_};
    prepare_run(inputs, run_);
    LiveSwap swaps(inputs, run_);
    before_steps_.reset();
    RunEnding ending(session_, signals_, plugin_path_, run_);
    try {
      const StepsTaken taken = RunLoop(session_, replicas_, run_, swaps)();
      ending.finish(taken);
      return taken.was_stopped ? static_cast<int>(ExitCode::kStopped) : 0;
    } catch (const Error& error) {
      ending.fail(error);
      throw;
    }
  }

  const Config config_;  // as the session got it
  const std::vector<std::string> plugin_path_;
  World& world_;
  RunSignals signals_{world_.rank() == 0};
  std::optional<StopBeforeSteps> before_steps_{std::in_place, [this] { return signals_.stop_requested(); },
                                               world_.rank() == 0};
  Session session_;
  ReplicaCheck replicas_{session_.state(), world_};
  PreparedRun run_;
  PostMortem post_mortem_{session_.state(), world_, session_.settings(), run_.fit};
};

}  // namespace

int run_training(Config config, const std::vector<std::string>& plugin_path) {
  return join_world(config.settings().comm, [&](World& world) { return Run(std::move(config), plugin_path, world)(); });
}

}  // namespace chassis
