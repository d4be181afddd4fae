// A run in order: prepare, train, save, evaluate, export, report.
#include "host/train/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "host/base/creation_limit.hpp"
#include "host/base/descriptor_reserve.hpp"
#include "host/base/log.hpp"
#include "host/base/slow_phase.hpp"
#include "host/base/units.hpp"
#include "host/compile/unit_flops.hpp"
#include "host/config/config_files.hpp"
#include "host/plan/memory_fit.hpp"
#include "host/plan/plan.hpp"
#include "host/save/resume_differences.hpp"
#include "host/save/weights.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"
#include "host/service/step_place.hpp"
#include "host/service/threads.hpp"
#include "host/session/fields.hpp"
#include "host/session/join.hpp"
#include "host/session/run_data.hpp"
#include "host/session/session.hpp"
#include "host/train/best_loss.hpp"
#include "host/train/plugin_sink.hpp"
#include "host/train/post_mortem.hpp"
#include "host/train/rank_board.hpp"
#include "host/train/run_directory.hpp"
#include "host/train/run_events.hpp"
#include "host/train/run_facts.hpp"
#include "host/train/run_report.hpp"
#include "host/train/run_saves.hpp"
#include "host/train/samples.hpp"
#include "host/train/signals.hpp"
#include "host/train/sinks.hpp"
#include "host/train/step_trace.hpp"
#include "host/train/trainer.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Run {
 public:
  Run(Config config, const std::vector<std::string>& plugin_path, World& world)
      : planned_config_(config),
        plugin_path_(plugin_path),
        world_(world),
        session_(std::move(config), {.plugin_path = plugin_path, .world = &world}) {}

  // Reports a failure before anything is destroyed: otherwise the other ranks would see closed connections first.
  int operator()() {
    try {
      return world_.run([this] { return train_or_report(); });
    } catch (Error& error) {
      if (directory_) post_mortem_.add_communication_failure(error, directory_->path());
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
      if (error.code() != ExitCode::kOutOfMemory || !directory_ || world_.is_failure_of_another(error)) throw;
      post_mortem_.add_out_of_memory(error, directory_->path());
      throw error;
    }
  }

  int train() {
    prepare();
    bool stopped = false;
    try {
      stopped = take_steps();
      finish(stopped);
    } catch (const Error& error) {
      // A numeric error is thrown on all ranks. A save in progress is of an earlier step and is still finished.
      if (error.code() == ExitCode::kNumeric) saves_->finish();
      finish_sinks(RunOutcome::kFailed);
      if (trainer_->state().step > first_step_) log_failure();
      throw;
    }
    return stopped ? static_cast<int>(ExitCode::kStopped) : 0;
  }

  // Returns whether the run was stopped before its last step.
  bool take_steps() {
    while (trainer_->state().step < trainer_->options().max_steps) {
      if (best_ && best_->is_out_of_patience()) {
        log::info("{}", best_->end_text());
        return false;
      }
      const StepRecord record = take_step();
      const StepRequests& requests = trainer_->requests();
      if (const int64_t every = settings().run.replica_check_steps; every > 0 && record.step % every == 0) {
        const ScopedSpan span(trace(), TraceTrack::kSteps, "comparison of replicas");
        replicas_.require_equal(record.step);
      }
      if (saves_->saver().is_saving() && requests.ready) {
        const ScopedSpan span(trace(), TraceTrack::kSaves, "next part of a save");
        save([&] { saves_->advance(); });
      }
      if (evaluation_due(record.step)) {
        const ScopedSpan span(trace(), TraceTrack::kSteps, "evaluation");
        evaluate_all(record.step);
      }
      if (samples_->due(record.step, trainer_->options().max_steps)) {
        const ScopedSpan span(trace(), TraceTrack::kSteps, "samples");
        take_samples(record.step);
      }
      if (requests.save || saves_->due(record.step)) {
        enter_phase("save");
        const ScopedSpan span(trace(), TraceTrack::kSaves, "save");
        save([&] { saves_->save(record.step); });
      }
      if (trace_) trace_->end_step(record.step);
      if (requests.stop) return record.step < trainer_->options().max_steps;
    }
    return false;
  }

  void save(const std::function<void()>& part) {
    const Clock::time_point start = Clock::now();
    part();
    save_ms_ += 1000.0 * seconds_since(start);
  }

  const Settings& settings() const { return session_.settings(); }
  bool first_rank() const { return world_.rank() == 0; }

  // First the work that needs no directory, then its lock, then all checks, then the first write.
  void prepare() {
    choose_recompute();
    check_seq_len(session_.model(), session_.program(), settings().train.seq_len);
    samples_.emplace(session_);
    directory_ = std::make_unique<RunDirectory>(settings().run.output_dir, world_);
    directory_->check_names(settings());
    // The first rank of a machine prepares the files that the others then read.
    world_.run_and_agree("preparing data", [&] {
      if (world_.launch().local_rank == 0) open_data();
    });
    if (!data_) open_data();
    limit_.emplace(mode_of_sources_);
    world_.expect_same("data", data_->data_hash());
    agree_on_providers(session_.world(), session_.compiled());
    const RunIdentity identity{model_hash(session_.model(), session_.parameters()), data_->data_hash(),
                               data_->content()};
    directory_->check_identity(session_.config(), identity);
    const std::string units = std::to_string(session_.program().unit_names().size()) + " units";
    const SlowPhase phase("allocating and filling the tensors of " + units);
    session_.allocate();
    saves_ = std::make_unique<RunSaves>(session_, replicas_, *directory_, signals_, [this] { return state_to_save(); });
    if (!settings().log.trace->empty()) trace_.emplace(settings().log.trace, session_, directory_->path());
    make_trainer();
    if (const Settings::Eval& eval = settings().eval; eval.keeps_best()) best_.emplace(eval.keep_best, eval.patience);
    if (const auto resumed = saves_->saver().resume()) {
      resume(resumed->checkpoint, resumed->state);
      const ResumeFrom& from = settings().run.resume;
      directory_->set_later_steps_aside(from == Resume::kAuto ? resumed->checkpoint : from.text,
                                        trainer_->state().step);
    } else {
      start_anew();
    }
    saves_->check_space();
    directory_->check_steps(settings(), trainer_->state().step, trainer_->options().max_steps);
    directory_->start(session_, identity);
    if (settings().checkpoint.self_test) saves_->saver().self_test();
    if (trace_) trace_->start(trainer_->state().step);
    reserve_.emplace();
    make_sinks();
    if (world_.size() > 1) board_ = std::make_unique<RankBoard>(world_, directory_->file("ranks.json"));
    announce();
    saves_->start_clock();
    before_steps_.reset();
  }

  // All that a run writes is derived from these files, so only users who may read them may read it.
  unsigned mode_of_sources() const {
    return shared_read_mode(config_files(session_.config().file())) &
           shared_read_mode(data_source_files(session_.data_needs())) & shared_file_mode(settings());
  }

  void open_data() {
    mode_of_sources_ = mode_of_sources();  // first, since preparing may take long, and files may be gone afterwards
    const auto poll = [this] {
      if (signals_.stop_requested())
        throw Error(ExitCode::kStopped, "stopped while preparing data; nothing was trained");
    };
    data_ = open_train_data(session_.data_needs(), poll);
    eval_data_ = open_eval_data(session_.data_needs(), poll);
  }

  void start_anew() {
    if (best_) saves_->restore_best(-1);
    const Settings::Model& model = settings().model;
    if (model.path.is_set() && model.init == ModelInit::kPretrained) return saves_->saver().start_from(model.path);
    initialize();
    if (const auto& adapter = settings().adapter.path; adapter.is_set()) saves_->saver().start_from_adapter(adapter);
  }

  void initialize() {
    session_.parameters().initialize(static_cast<uint64_t>(*settings().run.seed));
    session_.refresh_parameters();
  }

  void resume(const std::string& checkpoint, const Json& state) {
    const std::string where = checkpoint + "/manifest.json";
    TrainerState& trainer = trainer_->state();
    trainer = trainer_state_from_json(state, where);
    restore_data(state, where);
    if (state.contains("data")) count_steps_left();
    if (checkpoint.starts_with(directory_->path() + "/checkpoints/")) saves_->set_saved(trainer.step);
    log::info("resumed from {} at step {}", checkpoint, trainer.step);
    world_.run_and_agree("comparing with " + checkpoint, [&] {
      if (!first_rank()) return;
      const LearningRateSchedule& schedule = trainer_->options().schedule;
      report(resume_differences(checkpoint, trainer.step, length(), schedule, session_), checkpoint,
             settings().run.strict);
    });
    check_length(checkpoint);
    if (best_) restore_best(state, where);
  }

  // The link names the best checkpoint up to this step, which is not the newest best one if an older step is resumed.
  void restore_best(const Json& state, const std::string& where) {
    if (state.contains("best")) best_->restore(state["best"], where);
    if (saves_->restore_best(best_->step()) || best_->step() < 0) return;
    counted_warning("best checkpoint is gone", "the checkpoint with the " + best_->text() + " is not in " +
                                                   directory_->path() +
                                                   "/checkpoints: the next evaluation is the best");
    best_->forget();
  }

  // Epochs count rows of data. If earlier steps had another batch size, the steps left follow from the rows left.
  void count_steps_left() {
    const int64_t rows = trainer_->options().shape.num_rows(), step = trainer_->state().step;
    if (settings().run.max_steps != 0 || data_->num_rows_taken() == static_cast<uint64_t>(step * rows)) return;
    const double left = settings().run.epochs - data_->epoch();
    trainer_->set_max_steps(step + (left > 0 ? data_->num_steps(left, rows) : 0));
  }

  ResolvedLength length() const { return {trainer_->options().max_steps, trainer_->options().shape.num_rows()}; }

  // Throws if no step is left to train. A run with all steps done may still have to save here, or to export.
  void check_length(const std::string& checkpoint) {
    const int64_t step = trainer_->state().step, last = trainer_->options().max_steps;
    if (step < last || (step == last && (!saves_->is_saved(step) || export_is_missing(step)))) return;
    const Settings::Run& run = settings().run;
    const bool by_epochs = run.max_steps == 0;
    const std::string length = by_epochs ? fmt::format("run.epochs = {:g} is {} steps", *run.epochs, last)
                                         : fmt::format("run.max_steps is {}", last);
    throw config_error(
        by_epochs ? static_cast<const ConfigEntry&>(run.epochs) : run.max_steps,
        fmt::format("{}, and the run has reached step {} ({}): nothing is left to train", length, step, checkpoint))
        .hint("raise it to train further, or choose another run.output_dir for another run");
  }

  bool export_is_missing(int64_t step) {
    if (settings().exports.when == ExportWhen::kNever) return false;
    const std::string path = directory_->path() + "/final";
    const std::string found = find_on_rank_0(world_, "looking for " + path, [&]() -> std::string {
      try {
        SourceDirectory directory(path);
        return std::to_string(CheckpointManifest::read(directory).step);
      } catch (const Error&) {  // absent or incomplete
        return "";
      }
    });
    if (found != std::to_string(step)) log::info("all {} steps are done; only {} is missing", step, path);
    return found != std::to_string(step);
  }

  void restore_data(const Json& state, const std::string& where) {
    if (!state.contains("data"))  // an imported checkpoint
      return counted_warning("data from its beginning",
                             where + " was written by another program and has no position in this data");
    const int64_t seed = json_int(state, "seed", where);
    if (const Setting<int64_t>& wanted = settings().run.seed; seed != wanted)
      throw config_error(wanted, "run.seed is " + std::to_string(*wanted) + ", the run in " + directory_->path() +
                                     " has " + std::to_string(seed))
          .hint("a resumed run keeps its seed");
    data_->restore(json_at(state, "data", where), where);
  }

  Json state_to_save() const {
    const TrainerState& state = trainer_->state();
    Json saved = {{"step", state.step},
                  {"tokens", state.tokens},
                  {"trained_tokens", state.trained_tokens},
                  {"skipped_steps", state.skipped_steps},
                  {"seed", *settings().run.seed},
                  {"length", to_json(length())},
                  {"data", data_->save()}};
    if (Json pipeline = pipeline_record(session_.ranks().stack.pipeline()); !pipeline.is_null())
      saved["pipeline"] = std::move(pipeline);
    if (best_) saved["best"] = best_->to_json();
    return saved;
  }

  // Plans the memory of this rank before anything is allocated; all ranks choose together.
  void choose_recompute() {
    fit_ = fit_memory(session_, planned_config_, plugin_path_, world_);
    session_.executor().set_recompute(fit_.recompute);
  }

  void make_trainer() {
    const Ranks ranks = session_.ranks();
    const BatchSizes sizes = batch_sizes(settings(), ranks.num_data_ranks());
    TrainerOptions options;
    options.shape = {sizes.micro_batch_size, sizes.num_microbatches, ranks.data_rank(), ranks.num_data_ranks()};
    options.max_steps = settings().run.max_steps;
    if (options.max_steps == 0) options.max_steps = steps_of_epochs(sizes.global_batch_size);
    options.max_grad_norm = settings().optimizer.max_grad_norm;
    options.seed = static_cast<uint64_t>(*settings().run.seed);
    options.nonfinite = settings().train.nonfinite;
    options.max_skipped_steps = settings().train.max_skipped_steps;
    const Settings::Schedule& schedule = settings().schedule;
    options.schedule = {schedule.name,        settings().optimizer.lr, schedule.warmup_steps,
                        schedule.decay_steps, schedule.min_lr_ratio,   options.max_steps};
    options.requests = [this] {
      return StepRequests{signals_.stop_requested() || metrics_failure_, saves_->is_requested(),
                          saves_->saver().ready()};
    };
    options.before_update = [this] { saves_->saver().await_tensors(); };
    options.trace = trace();
    step_data_.emplace(step_data_bytes(session_.program(), settings(), sizes), MemoryCategory::kData);
    trainer_ = std::make_unique<Trainer>(session_.step_parts(), *data_, options);
  }

  int64_t steps_of_epochs(int64_t global_batch_size) {
    try {
      return data_->num_steps(settings().run.epochs, global_batch_size);
    } catch (const Error& error) {
      throw error_at(settings().run.epochs, error);
    }
  }

  void make_sinks() {
    if (!first_rank()) return;
    const std::string device = device_name(session_.device());
    ConsoleFacts facts;
    facts.max_steps = trainer_->options().max_steps;
    facts.every_steps = settings().log.every_steps;
    facts.flops_per_token = flops_per_token(session_.program(), session_.compiled().options.time);
    facts.peak_flops = peak_flops(device, session_.compute() == Dtype::bf16);
    facts.total_memory_bytes = device_memory(session_.device()).total_bytes;
    const LostMetrics lost = saves_->continues_after_failed_save() ? LostMetrics::kCount : LostMetrics::kStop;
    // First, so that the page of a plugin shows the end of the run.
    sinks_.push_back(make_events_sink(directory_->file("events.jsonl"), trainer_->state().step));
    for (const std::string& sink : *settings().log.sinks) {
      if (sink == "console") sinks_.push_back(make_console_sink(facts));
      if (sink == "jsonl") sinks_.push_back(make_jsonl_sink(directory_->open_metrics(trainer_->state().step), lost));
    }
    for (const PluginSlot& slot : session_.config().plugin_slots())
      if (slot.kind == "sink")
        sinks_.push_back(make_plugin_sink(session_.plugins().create(slot.key, slot.kind, slot.plugin),
                                          {.run_name = settings().run.name,
                                           .output_dir = directory_->path(),
                                           .config = session_.config().json().dump(),
                                           .first_step = trainer_->state().step,
                                           .max_steps = trainer_->options().max_steps}));
    if (!settings().sample.prompts->empty())
      sinks_.push_back(make_samples_sink(directory_->open_samples(trainer_->state().step), lost));
    saves_->set_listener([this](int64_t step, const SaveResult& result) {
      to_sinks([&](MetricsSink& sink) { sink.checkpoint(step, result); });
    });
    directory_->write_report(run_facts(session_, {.data = *data_,
                                                  .max_steps = trainer_->options().max_steps,
                                                  .rows_per_step = trainer_->options().shape.num_rows(),
                                                  .flops_per_token = facts.flops_per_token,
                                                  .peak_flops = facts.peak_flops,
                                                  .plan = fit_.plan ? &*fit_.plan : nullptr}));
  }

  void announce() {
    log::info(
        "{} on {}{}, {} threads, {} | {} parameters, {} trained | {} steps of {} tokens", *settings().run.name,
        device_name(session_.device()),
        world_.size() > 1 ? " × " + std::to_string(world_.size()) + " ranks (" + session_.mesh().text() + ")" : "",
        num_threads(), dtype_name(session_.compute()),
        count_text(static_cast<double>(session_.parameters().num_elements(false))),
        count_text(static_cast<double>(session_.parameters().num_elements(true))), trainer_->options().max_steps,
        count_text(static_cast<double>(trainer_->options().shape.num_rows() * settings().train.seq_len)));
    log::info("{}", data_text(*data_, trainer_->state().step, trainer_->options().max_steps,
                              trainer_->options().shape.num_rows()));
    if (const std::string packing = packing_text(*data_, session_.program()); !packing.empty())
      log::info("{}", packing);
    if (first_rank()) warn_of_length();
    log::info("{}", results_text(settings(), session_.tokenizer(), directory_->path()));
    start_ = Clock::now();
    first_tokens_ = trainer_->state().tokens;
    first_step_ = trainer_->state().step;
  }

  // Only the data shows how many steps a number of epochs takes, and how many rows an epoch has.
  void warn_of_length() {
    const TrainerOptions& options = trainer_->options();
    for (const std::string& text :
         {warmup_warning(settings(), options.schedule), rows_warning(settings(), *data_, options.shape.num_rows())})
      if (!text.empty()) counted_warning(text.substr(0, text.find(' ')), text);
    const int64_t rows = options.shape.num_rows(), most = std::numeric_limits<int64_t>::max() / rows;
    const int64_t steps_left = std::clamp<int64_t>(options.max_steps - trainer_->state().step, 0, most);
    for (auto& [key, text] : unreached_warnings(*data_, static_cast<uint64_t>(steps_left * rows)))
      counted_warning(std::move(key), std::move(text));
    warn_of_unused_samples(settings());
  }

  Trace* trace() { return trace_ ? trace_->recorder() : nullptr; }

  StepRecord take_step() {
    if (trace_) trace_->begin_step(trainer_->state().step + 1);
    const ScopedSpan span(trace(), TraceTrack::kSteps,
                          trace_ ? "step " + std::to_string(trainer_->state().step + 1) : std::string());
    StepRecord record = trainer_->step();
    record.save_ms = std::exchange(save_ms_, 0.0);
    write_metrics(session_.ranks().communicator.take_counts(), session_.metrics());
    record.extra = session_.metrics().take();
    last_step_ = record;
    if (board_) board_->set(record);
    to_sinks([&](MetricsSink& sink) { sink.step(record); });
    if (!memory_is_logged_) log_memory();
    return record;
  }

  // Called before the summary, which includes what the sinks dropped.
  void finish_sinks(RunOutcome outcome) {
    if (trace_) trace_->finish();
    for (const auto& sink : sinks_) sink->finish(outcome, trainer_->state().step);
  }

  // If metrics cannot be written, a checkpoint may still fit on the disk: the run saves and stops after the next step,
  // and then fails.
  void to_sinks(const std::function<void(MetricsSink&)>& write) {
    std::erase_if(sinks_, [&](const auto& sink) {
      try {
        write(*sink);
        return false;
      } catch (const Error& error) {
        if (error.code() != ExitCode::kStorage) throw;
        log::warn("{}; the run saves and stops", error.message());
        metrics_failure_ = Error(ExitCode::kStorage, "metrics.jsonl lacks its lines from step " +
                                                         std::to_string(trainer_->state().step) + " on");
        metrics_failure_->caused_by(error).hint("free some space; the same command then continues the run");
        return true;
      }
    });
  }

  // Logs planned and measured memory of this rank.
  void log_memory() {
    memory_is_logged_ = true;
    if (!first_rank()) return;
    const bool cuda = session_.device().type == Device::Type::kCuda;
    const PlanMemory measured = plan_memory(memory_usage());
    const uint64_t peak = cuda ? device_memory(session_.device()).peak_active_bytes : measured.peak_bytes;
    if (!fit_.plan) return;
    std::string text = memory_text(fit_.plan->start, measured, peak, peak_resident_bytes(), !cuda);
    if (data_->lengths().vary())
      text += fmt::format("\n  planned for micro-batches of {} positions; shorter ones take less",
                          *settings().train.seq_len);
    log::info("{}", text);
  }

  bool evaluation_due(int64_t step) {
    if (eval_data_.empty()) return false;
    const int64_t every = settings().eval.every_steps;
    return step == trainer_->options().max_steps || (every > 0 && step % every == 0);
  }

  // A step with a new lowest loss of eval.keep_best is saved.
  void evaluate_all(int64_t step) {
    bool is_best = false;
    was_evaluated_ = true;
    for (size_t i = 0; i < eval_data_.size(); ++i) {
      EvalRecord record = evaluate(session_.executor(), *eval_data_[i], settings().train.micro_batch_size,
                                   settings().eval.max_batches, session_.ranks(), session_.device());
      record.step = step;
      record.name = eval_name(settings().data, i);
      to_sinks([&](MetricsSink& sink) { sink.evaluation(record); });
      if (best_ && record.name == best_->set()) is_best = best_->add(step, record.loss);
      if (!std::isfinite(record.loss))
        counted_warning("evaluation without a finite loss",
                        fmt::format("the loss of \"{}\" at step {} is {}", record.name, step, record.loss));
    }
    if (is_best) save([&] { saves_->save_best(step); });
  }

  void take_samples(int64_t step) {
    samples_->take(step,
                   [&](const SampleRecord& record) { to_sinks([&](MetricsSink& sink) { sink.sample(record); }); });
  }

  void finish(bool stopped) {
    const TrainerState& state = trainer_->state();
    if (state.step > 0) saves_->save(state.step);
    saves_->finish();
    const bool exports = !stopped && settings().exports.when != ExportWhen::kNever;
    if (exports) saves_->export_final(state.step);
    count_nonfinite(exports);
    if (board_) board_->finish();
    finish_sinks(stopped ? RunOutcome::kStopped : RunOutcome::kDone);
    world_.run_and_agree("metrics of the run", [this] {
      if (metrics_failure_) throw *metrics_failure_;
    });
    log_end(stopped);
    if (!stopped && !exports && state.step > 0 && !saves_->is_saved(state.step))
      throw storage_error("step " + std::to_string(state.step) + " was trained, but could not be saved");
  }

  // A run that skips steps whose loss is not finite ends as others do, but its weights may be useless.
  void count_nonfinite(bool exports) {
    if (best_ && best_->step() < 0 && was_evaluated_)
      counted_warning("no best checkpoint",
                      fmt::format("eval.keep_best = \"{}\" has kept nothing: no evaluation of that "
                                  "set had a finite loss",
                                  best_->set()));
    if (!last_step_ || std::isfinite(last_step_->loss)) return;
    counted_warning(
        "last loss not finite",
        fmt::format("the loss of the last step ({}) is {}: the weights {} may be of no use", last_step_->step,
                    last_step_->loss, exports ? "in " + directory_->path() + "/final" : "that were saved"));
  }

  void log_end(bool stopped) {
    const std::string_view signal = signals_.name();
    log_totals(!stopped ? "done" : signal.empty() ? "stopped" : signal);
    if (best_ && best_->step() >= 0 && first_rank()) {
      const bool has_final =
          !stopped && settings().exports.when != ExportWhen::kNever && best_->step() < trainer_->state().step;
      log::info("best: {}; {}/best{}", best_->text(), directory_->path(),
                has_final ? ", and final/ has the last weights: chassis ckpt export " +
                                shell_word(directory_->path() + "/best") + " DIR"
                          : "");
    }
    const bool is_early = trainer_->state().step < trainer_->options().max_steps;
    if (!stopped)
      return log::info("{}", next_steps(settings(), session_.tokenizer(), directory_->path(), is_early, plugin_path_));
    const bool is_resumable = saves_states(session_);
    const int64_t step = trainer_->state().step;
    log::info("{}", resume_hint(settings(), {directory_->path(), step, saves_->is_saved(step), is_resumable}));
  }

  void log_failure() {
    log_totals("failed");
    if (first_rank()) log::info("{}", saves_->last_checkpoint_text());
  }

  void log_totals(std::string_view end) {
    const TrainerState& state = trainer_->state();
    const double seconds = seconds_since(start_);
    const double tokens = static_cast<double>(state.tokens - first_tokens_);
    log::info("{} at step {} of {}: {} tokens in {}, {} tok/s, peak {}", end, state.step, trainer_->options().max_steps,
              count_text(tokens), duration_text(seconds), count_text(seconds > 0.0 ? tokens / seconds : 0.0),
              bytes_text(device_memory(session_.device()).peak_active_bytes));
    if (const std::string rows = first_rank() ? rows_taken_text(*data_) : ""; !rows.empty()) log::info("{}", rows);
    if (const std::string positions = first_rank() ? positions_text(data_->stats()) : ""; !positions.empty())
      log::info("{}", positions);
    for (const auto& [key, count] : counted_warnings())
      log::info("warning: {} ({})", key, count == 1 ? "once" : fmt::format("{} times", count));
    if (const std::string failures = first_rank() ? saves_->failures() : ""; !failures.empty())
      log::info("warning: {}", failures);
  }

  const Config planned_config_;
  const std::vector<std::string> plugin_path_;
  World& world_;
  RunSignals signals_{world_.rank() == 0};
  std::optional<StopBeforeSteps> before_steps_{std::in_place, [this] { return signals_.stop_requested(); },
                                               world_.rank() == 0};
  Session session_;
  unsigned mode_of_sources_ = 0;
  std::optional<CreationLimit> limit_;        // limits access to the files of this run
  std::optional<DescriptorReserve> reserve_;  // for saves, however many the sinks use
  ReplicaCheck replicas_{session_};
  std::unique_ptr<RunDirectory> directory_;
  std::unique_ptr<TrainData> data_;
  std::vector<std::unique_ptr<EvalData>> eval_data_;
  std::optional<Samples> samples_;
  std::unique_ptr<RunSaves> saves_;
  std::optional<MemoryCharge> step_data_;  // the rows in data_, which are plain arrays
  std::unique_ptr<Trainer> trainer_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
  std::unique_ptr<RankBoard> board_;  // if there are several ranks
  std::optional<BestLoss> best_;      // if eval.keep_best is set
  std::optional<StepRecord> last_step_;
  std::optional<Error> metrics_failure_;
  Clock::time_point start_;
  uint64_t first_tokens_ = 0;
  int64_t first_step_ = 0;
  double save_ms_ = 0.0;  // since the last step
  bool memory_is_logged_ = false;
  bool was_evaluated_ = false;
  MemoryFit fit_;
  std::optional<StepTrace> trace_;
  PostMortem post_mortem_{session_, fit_};
};

}  // namespace

int run_training(Config config, const std::vector<std::string>& plugin_path) {
  return join_world(config.settings().comm, [&](World& world) { return Run(std::move(config), plugin_path, world)(); });
}

}  // namespace chassis
