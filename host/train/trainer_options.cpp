// Reads the options of a trainer from the session, and binds its requests to the run.
#include "host/train/trainer_options.hpp"

#include "host/config/config.hpp"

namespace chassis {

TrainerOptions trainer_options(const RunInputs& inputs, PreparedRun& run, int64_t max_steps) {
  Session& session = inputs.session;
  const Settings& settings = session.settings();
  const Ranks ranks = session.ranks();
  const BatchSizes sizes = batch_sizes(settings, ranks.num_data_ranks());
  TrainerOptions options;
  options.shape = {sizes.micro_batch_size, sizes.num_microbatches, ranks.data_rank(), ranks.num_data_ranks()};
  options.max_steps = max_steps;
  options.max_grad_norm = settings.optimizer.max_grad_norm;
  options.seed = static_cast<uint64_t>(*settings.run.seed);
  options.nonfinite = settings.train.nonfinite;
  options.max_skipped_steps = settings.train.max_skipped_steps;
  const Settings::Schedule& schedule = settings.schedule;
  options.schedule = {schedule.name,        settings.optimizer.lr, schedule.warmup_steps,
                      schedule.decay_steps, schedule.min_lr_ratio, options.max_steps};
  options.requests = [&signals = inputs.signals, &run] {
    const int64_t step = run.trainer->state().step + 1;
    signals.note_asked(step, step >= run.trainer->options().max_steps);
    return StepRequests{.stop = signals.stop_requested() || run.sinks.failure(),
                        .save = run.saves->is_requested(),
                        .swap = run.swap_requested && run.swap_requested(),
                        .ready = run.saves->saver().ready()};
  };
  options.before_update = [&run] { run.saves->saver().await_tensors(); };
  options.objective = run.objective ? &*run.objective : nullptr;
  options.trace = run.recorder();
  options.router_every_steps = settings.log.every_steps;
  options.process_settings = session.plugins().registry().settings_before_plugins();
  return options;
}

}  // namespace chassis
