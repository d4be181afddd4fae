// Makes the objects of a run in order: memory, directory, data, tensors, trainer, sinks.
#include "host/train/preparation.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "host/base/log.hpp"
#include "host/base/slow_phase.hpp"
#include "host/base/units.hpp"
#include "host/compile/unit_flops.hpp"
#include "host/config/config_files.hpp"
#include "host/config/eval_sets.hpp"
#include "host/service/device.hpp"
#include "host/service/threads.hpp"
#include "host/session/fields.hpp"
#include "host/session/join.hpp"
#include "host/session/reference_values.hpp"
#include "host/session/run_data.hpp"
#include "host/train/plugin_sink.hpp"
#include "host/train/router_metrics.hpp"
#include "host/train/run_events.hpp"
#include "host/train/run_facts.hpp"
#include "host/train/run_report.hpp"
#include "host/train/run_start.hpp"
#include "host/train/trainer_options.hpp"

namespace chassis {
namespace {

class Preparation {
 public:
  Preparation(const RunInputs& inputs, PreparedRun& run) : inputs_(inputs), session_(inputs.session), run_(run) {}

  void operator()() {
    choose_recompute();
    check_seq_len(session_.model(), session_.program(), settings().train.seq_len);
    if (session_.objective() != nullptr) {
      if (!precomputes_reference(session_) && session_.objective()->needs_reference()) run_.reference.emplace(session_);
      run_.objective.emplace(session_, run_.reference ? &*run_.reference : nullptr);
    }
    run_.samples.emplace(session_);
    run_.generation_sets.emplace(session_, [&signals = inputs_.signals] { return signals.stop_requested(); });
    run_.directory = std::make_unique<RunDirectory>(settings().run.output_dir, world());
    run_.directory->check_names(settings());
    open_data();
    world().expect_same("data", run_.data->data_hash());
    agree_on_providers(world(), session_.compiled());
    const RunIdentity identity{model_hash(session_.model(), session_.parameters()), run_.data->data_hash(),
                               run_.data->content()};
    run_.directory->check_identity(session_.config(), identity);
    const std::string units = std::to_string(session_.program().unit_names().size()) + " units";
    const SlowPhase phase("allocating and filling the tensors of " + units);
    if (!settings().log.trace->empty())
      run_.trace.emplace(settings().log.trace, session_.state(), world(), run_.directory->path());
    session_.allocate({.recompute = run_.fit.recompute, .trace = run_.recorder(), .keeps_failed = true});
    if (run_.reference) run_.reference->allocate();
    const auto state = [&session = session_, &run = run_] {
      return state_to_save(run, session.ranks().plan.pipeline(), session.settings().run.seed);
    };
    run_.saves = std::make_unique<RunSaves>(session_, inputs_.replicas, *run_.directory, inputs_.signals, state);
    if (session_.objective() != nullptr && session_.objective()->desc().scores())
      run_.saves->set_scored_row(first_scored_row());
    make_trainer();
    if (const Settings::Eval& eval = settings().eval; eval.keeps_best())
      run_.best.emplace(eval.keep_best, measure_of_best(), eval.patience);
    resume_or_start_anew(session_, run_);
    run_.saves->check_space();
    run_.directory->check_steps(settings(), trainer().state().step, trainer().options().max_steps);
    run_.directory->start(session_.config(), session_.plugins().registry(), session_.compiled(), identity);
    if (settings().checkpoint.self_test) run_.saves->saver().self_test();
    if (run_.trace) run_.trace->start(trainer().state().step);
    run_.reserve.emplace();
    if (first_rank()) make_sinks();
    if (world().size() > 1) run_.board = std::make_unique<RankBoard>(world(), run_.directory->file("ranks.json"));
    announce();
    run_.saves->start_clock();
  }

 private:
  const Settings& settings() const { return session_.settings(); }
  World& world() { return session_.world(); }
  bool first_rank() { return world().rank() == 0; }
  Trainer& trainer() { return *run_.trainer; }

  // Plans the memory of this rank before anything is allocated; all ranks choose together.
  void choose_recompute() { run_.fit = fit_memory(session_, inputs_.config, inputs_.plugin_path, world()); }

  // The first rank of a machine prepares the files that the others then read.
  void open_data() {
    unsigned mode = 0;
    world().run_and_agree("preparing data", [&] {
      if (world().launch().local_rank == 0) mode = open_data_sets();
    });
    if (!run_.data) mode = open_data_sets();
    run_.limit.emplace(mode);
  }

  // Returns mode_of_sources().
  unsigned open_data_sets() {
    const unsigned mode = mode_of_sources();  // first, since preparing may take long, and files may be gone afterwards
    const auto poll = [this] {
      if (inputs_.signals.stop_requested())
        throw Error(ExitCode::kStopped, "stopped while preparing data; nothing was trained");
    };
    run_.data = open_train_data(session_.data_needs(), poll);
    run_.eval_data = open_eval_data(session_.data_needs(), poll);
    return mode;
  }

  // All that a run writes is derived from these files, so only users who may read them may read it.
  unsigned mode_of_sources() const {
    return shared_read_mode(config_files(session_.config().file())) &
           shared_read_mode(data_source_files(session_.data_needs())) &
           shared_read_mode(generation_source_files(settings())) & shared_file_mode(settings());
  }

  RunSaves::ScoredRow first_scored_row() const {
    const TokenStore& store = run_.data->sets().front().store();
    const DocumentSpan document = store.document(0);
    RunSaves::ScoredRow row{.ids = {}, .where = store.origin(0)};
    row.ids.resize(static_cast<size_t>(store.sequences(document).front().length));
    store.read_ids(document.begin, row.ids);
    return row;
  }

  Measure measure_of_best() const {
    const Settings::Eval& eval = settings().eval;
    if (std::ranges::count(generation_set_names(eval), *eval.keep_best) > 0) return {"score", true};
    if (session_.objective() == nullptr) return {};
    for (const ObjectiveMetric& metric : session_.objective()->desc().metrics)
      if (metric.name == *eval.metric) return {metric.name, metric.better == CHASSIS_BETTER_HIGHER};
    return {};
  }

  void make_trainer() {
    const BatchSizes sizes = batch_sizes(settings(), session_.ranks().num_data_ranks());
    const int64_t max_steps = settings().run.max_steps;
    TrainerOptions options =
        trainer_options(inputs_, run_, max_steps != 0 ? max_steps : steps_of_epochs(sizes.global_batch_size));
    run_.step_data.emplace(step_data_bytes(session_.program(), settings(), sizes), MemoryCategory::kData);
    run_.trainer = std::make_unique<Trainer>(session_.state(), *run_.data, std::move(options));
  }

  int64_t steps_of_epochs(int64_t global_batch_size) {
    try {
      return run_.data->num_steps(settings().run.epochs, global_batch_size);
    } catch (const Error& error) {
      throw error_at(settings().run.epochs, error);
    }
  }

  // On rank 0. Also writes the report of the run, which its sinks complete.
  void make_sinks() {
    RunDirectory& directory = *run_.directory;
    const int64_t step = trainer().state().step, max_steps = trainer().options().max_steps;
    const std::string device = device_name(session_.device());
    ConsoleFacts facts;
    facts.max_steps = max_steps;
    facts.every_steps = settings().log.every_steps;
    const DimSizes sizes = session_.compiled().options().planned(session_.program());
    facts.flops_per_token = flops_per_token(session_.program(), sizes);
    const std::vector<double> needed = unit_flops(session_.program(), session_.parameters(), sizes);
    facts.peak_flops = peak_flops(device, session_.compute() == Dtype::bf16);
    facts.total_memory_bytes = device_memory(session_.device()).total_bytes;
    const LostMetrics lost = run_.saves->continues_after_failed_save() ? LostMetrics::kCount : LostMetrics::kStop;
    // First, so that the page of a plugin shows the end of the run.
    run_.sinks.add(make_events_sink(directory.file("events.jsonl"), step));
    for (const std::string& sink : *settings().log.sinks) {
      if (sink == "console") run_.sinks.add(make_console_sink(facts));
      if (sink == "jsonl") run_.sinks.add(make_jsonl_sink(directory.open_metrics(step), lost));
    }
    for (const PluginSlot& slot : session_.config().plugin_slots())
      if (slot.kind == "sink")
        run_.sinks.add(make_plugin_sink(session_.plugins().create(slot.key, slot.kind, slot.plugin),
                                        {.run_name = settings().run.name,
                                         .output_dir = directory.path(),
                                         .config = session_.config().json().dump(),
                                         .first_step = step,
                                         .max_steps = max_steps}));
    if (!settings().sample.prompts->empty()) run_.sinks.add(make_samples_sink(directory.open_samples(step), lost));
    if (run_.generation_sets->size() > 0)
      run_.sinks.add(make_generations_sink(directory.file(kGenerationsFolder), lost));
    run_.saves->set_listener([&run = run_](int64_t saved_step, const SaveResult& result) {
      run.sinks.write(run.trainer->state().step, [&](MetricsSink& sink) { sink.checkpoint(saved_step, result); });
    });
    directory.write_report(
        run_facts(session_, {.data = *run_.data,
                             .max_steps = max_steps,
                             .rows_per_step = trainer().options().shape.num_rows(),
                             .flops_per_token = facts.flops_per_token,
                             .peak_flops = facts.peak_flops,
                             .needed_flops_per_token = std::accumulate(needed.begin(), needed.end(), 0.0),
                             .plan = run_.fit.plan ? &*run_.fit.plan : nullptr}));
  }

  void announce() {
    const TrainerOptions& options = trainer().options();
    log::info(
        "{} on {}{}, {} threads, {} | {} parameters, {} trained | {} steps of {} tokens", *settings().run.name,
        device_name(session_.device()),
        world().size() > 1 ? " × " + std::to_string(world().size()) + " ranks (" + session_.mesh().text() + ")" : "",
        num_threads(), dtype_name(session_.compute()),
        count_text(static_cast<double>(session_.parameters().num_elements(false))),
        count_text(static_cast<double>(session_.parameters().num_elements(true))), options.max_steps,
        count_text(static_cast<double>(options.shape.num_rows() * settings().train.seq_len)));
    log::info("{}", data_text(*run_.data, trainer().state().step, options.max_steps, options.shape.num_rows()));
    if (const std::string packing = packing_text(*run_.data, session_.program()); !packing.empty())
      log::info("{}", packing);
    if (has_routers(session_.compiled().program()))
      for (const PassReport& report : session_.compiled().reports(Purpose::kTraining))
        if (report.pass == "routers") log::info("{}", report.what);
    if (first_rank()) warn_of_length();
    log::info("{}", results_text(settings(), session_.tokenizer(), run_.directory->path()));
  }

  // Only the data shows how many steps a number of epochs takes, and how many rows an epoch has.
  void warn_of_length() {
    const TrainerOptions& options = trainer().options();
    for (const std::string& text : {warmup_warning(settings(), options.schedule),
                                    rate_warning(settings(), options.schedule, trainer().state().step),
                                    rows_warning(settings(), *run_.data, options.shape.num_rows())})
      if (!text.empty()) counted_warning(text.substr(0, text.find(' ')), text);
    const int64_t rows = options.shape.num_rows(), most = std::numeric_limits<int64_t>::max() / rows;
    const int64_t steps_left = std::clamp<int64_t>(options.max_steps - trainer().state().step, 0, most);
    for (auto& [key, text] : unreached_warnings(*run_.data, static_cast<uint64_t>(steps_left * rows)))
      counted_warning(std::move(key), std::move(text));
    warn_of_unused_samples(settings());
  }

  const RunInputs& inputs_;
  Session& session_;
  PreparedRun& run_;
};

}  // namespace

void prepare_run(const RunInputs& inputs, PreparedRun& run) { Preparation(inputs, run)(); }

}  // namespace chassis
