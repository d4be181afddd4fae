// Carries out the actions of a swap on all ranks.
#include "host/train/live_swap.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/config/keys.hpp"
#include "host/save/weights.hpp"
#include "host/service/memory.hpp"
#include "host/session/fields.hpp"
#include "host/session/providers.hpp"
#include "host/session/run_data.hpp"
#include "host/train/prepared_run.hpp"
#include "host/train/trainer_options.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kHistory = 50;         // steps whose losses say what is usual
constexpr size_t kFewestKnown = 5;      // with fewer, only non-finite values are wrong
constexpr int64_t kProbationSteps = 5;  // after which a swap is permanent

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Values of `set`, as overrides: nested tables by dotted keys.
void add_changes(const TomlValue& table, const std::string& prefix, std::vector<std::string>& out) {
  for (const TomlValue& value : table.children) {
    const std::string key = prefix.empty() ? value.name : prefix + "." + value.name;
    if (value.is_table() && !value.children.empty())
      add_changes(value, key, out);
    else
      out.push_back(key + "=" + toml_text(value));
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string text_of(const std::vector<ChangedKey>& keys) {
  std::vector<std::string> texts;
  size_t num_options = 0;
  for (const ChangedKey& key : keys) {
    const bool is_on_one_side = key.before.empty() || key.after.empty();
    if (is_on_one_side && !key.key.ends_with(".plugin")) {
      ++num_options;
      continue;
    }
    texts.push_back(fmt::format("{}: {} -> {}", key.key, key.before.empty() ? "unset" : key.before,
                                key.after.empty() ? "unset" : key.after));
  }
  std::string text = fmt::format("{}", fmt::join(texts, ", "));
  if (num_options > 0)
    text += fmt::format("{}{} that only one side has", texts.empty() ? "" : ", and ",
                        num_options == 1 ? "an option" : std::to_string(num_options) + " options");
  return text;
}

constexpr char kNothing[] = "nothing";

Json plugins_of(const Config& config) {
  Json plugins = Json::object();
  for (const PluginSlot& slot : config.plugin_slots())
    if (slot.kind != "model") plugins[slot.key] = slot.plugin;
  return plugins;
}

}  // namespace

std::vector<ChangedKey> changed_keys(const Config& before, const Config& after) {
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [key, value] : dotted_values(before.json()))
    if (!value.is_null()) values[key].first = json_line(value);
  for (const auto& [key, value] : dotted_values(after.json()))
    if (!value.is_null()) values[key].second = json_line(value);
  std::vector<ChangedKey> out;
  for (const auto& [key, texts] : values)
    if (texts.first != texts.second) out.push_back({key, texts.first, texts.second, change_of(host_schema(), key)});
  return out;
}

struct LiveSwap::Attempt {
  SwapRequest request;
  SwapProtocol protocol = {};
  std::vector<ChangedKey> keys = {};
  std::vector<std::string> left_out = {};
  std::unique_ptr<NextState> next = {};  // after kActivate: the state before
  std::optional<StateTransfer> transfer = {};
  std::optional<SwapWitness> witness = {};
  SwapWitness::Seen before = {}, after = {};
  MemoryFit fit = {}, fit_before = {};
  TransferResult moved = {};
  uint64_t peak_planned = 0;
  std::string cause = {};
  int64_t first_step = 0;  // after which it came
  int64_t steps_watched = 0;
  double pause_ms = 0.0;
  NamedValues phases = {};    // milliseconds
  bool is_hot = false;        // no state is made
  bool is_exchanged = false;  // the run uses the next state
};

LiveSwap::LiveSwap(const RunInputs& inputs, PreparedRun& run) : inputs_(inputs), run_(run) {
  const SettingTables<Settings::Swap>& swaps = session().settings().swap;
  for (const Settings::Swap& swap : swaps) {
    Planned planned{.at_step = swap.at_step, .request = {.id = swap.key(), .changes = {}}, .where = swap.where()};
    add_changes(*swap.set, "", planned.request.changes);
    planned_.push_back(std::move(planned));
  }
  std::ranges::stable_sort(planned_, {}, &Planned::at_step);
  check_planned();
  run.swap_requested = [this] { return is_requested(); };
  if (world().rank() != 0) return;
  control_ = std::make_unique<ControlServer>(run.directory->path(), generation_);
  computes_ = plugins_of(session().config());
  set_status();
}

LiveSwap::~LiveSwap() { run_.swap_requested = {}; }

void LiveSwap::set_status() {
  if (!control_) return;
  Json status = {{"step", step()}, {"computes", computes_}};
  if (attempt_)
    status["probation"] = {{"id", attempt_->request.id}, {"steps", attempt_->steps_watched}, {"of", kProbationSteps}};
  control_->set_status(status);
}

int64_t LiveSwap::step() const { return run_.trainer->state().step; }

// Each is compiled as it will be, after those before it.
void LiveSwap::check_planned() {
  if (planned_.empty()) return;
  world().run_and_agree("checking the planned swaps", [this] {
    std::optional<Config> config(session().config());
    const int64_t last = run_.trainer->options().max_steps;
    for (const Planned& planned : planned_) {
      try {
        if (planned.at_step >= last)
          throw config_error(fmt::format("at_step is {}, and the run ends after step {}", planned.at_step, last));
        std::vector<std::string> left_out;
        const std::unique_ptr<NextState> next = session().make_next(config_of(planned.request, *config, left_out));
        check_change(*config, next->config);
        config.emplace(next->config);
      } catch (const Error& error) {
        throw Error(error.code(), planned.where, planned.request.id + ": " + error.what());
      }
    }
  });
}

bool LiveSwap::is_requested() {
  if (!control_) return false;
  if (!asked_) asked_ = control_->take();
  return asked_ || (attempt_ && attempt_->request.is_of_operator && control_->cancel_requested());
}

void LiveSwap::before_steps() {
  while (!planned_.empty() && planned_.front().at_step <= step()) {
    const Planned planned = std::move(planned_.front());
    planned_.pop_front();
    begin(planned.request);
  }
}

void LiveSwap::after_step(const StepRecord& record, bool requested) {
  if (attempt_)
    watch(record);
  else if (std::isfinite(record.loss) && std::isfinite(record.grad_norm)) {
    history_.emplace_back(record.loss, record.grad_norm);
    if (history_.size() > kHistory) history_.pop_front();
  }
  const bool ends = record.step >= run_.trainer->options().max_steps;
  if (ends && attempt_) {  // nothing is left to watch
    attempt_->protocol.take(SwapEvent::kDone);
    advance();
  }
  if (ends) return;
  if (requested) take_request();
  before_steps();
  set_status();
}

void LiveSwap::take_request() {
  // Rank 0 says what is asked for.
  const std::string text = find_on_rank_0(world(), "a request of an operator", [this]() -> std::string {
    const std::optional<ControlRequest> request = std::exchange(asked_, std::nullopt);
    if (request) return control_line(*request);
    return attempt_ && control_->cancel_requested() ? "cancel" : kNothing;
  });
  if (text == kNothing) return;
  if (text == "cancel") return decide(false, "cancelled by the operator");
  const ControlRequest asked = parse_control_request(text);
  switch (asked.verb) {
    case ControlVerb::kCommit:
    case ControlVerb::kRollback: {
      const bool commits = asked.verb == ControlVerb::kCommit;
      if (attempt_) return decide(commits, "asked for by the operator");
      if (control_) control_->finish(false, kRefusedOutcome, "no swap is on probation");
      return;
    }
    default:
      break;
  }
  if (!asked.plugins.empty()) {
    if (control_)
      control_->finish(false, kRefusedOutcome,
                       "another version of a plugin cannot be loaded while the run trains yet: stop the run, and start "
                       "it again with [plugins] path");
    return;
  }
  begin({.id = asked.id,
         .changes = asked.set,
         .file = asked.file,
         .file_name = asked.file_name,
         .only_check = asked.verb == ControlVerb::kCheck,
         .is_of_operator = true});
}

void LiveSwap::decide(bool commits, const std::string& cause) {
  if (!commits) attempt_->cause = cause;
  attempt_->protocol.take(commits ? SwapEvent::kDone : SwapEvent::kFailed);
  advance();
}

Config LiveSwap::config_of(const SwapRequest& request, const Config& present,
                           std::vector<std::string>& left_out) const {
  std::vector<std::string> changes = request.changes;
  // A step keeps its rows, whatever number of ranks divides them.
  const Setting<int64_t>& global = present.settings().train.global_batch_size;
  const int64_t rows = run_.trainer->options().shape.num_rows();
  if (!global.by_user()) changes.push_back(fmt::format("{}={}", global.key(), rows));
  if (request.file.empty()) return present.with(changes, left_out);
  changes.insert(changes.begin(), present.overrides().begin(), present.overrides().end());
  return load_config_text(request.file, request.file_name, changes);
}

void LiveSwap::begin(const SwapRequest& request) {
  if (attempt_) {  // the next one begins where the one before has proved itself so far
    attempt_->protocol.take(SwapEvent::kDone);
    advance();
  }
  attempt_ = std::make_unique<Attempt>(Attempt{.request = request});
  attempt_->first_step = step();
  log::info("swap {}: {}", request.id, fmt::join(request.changes, ", "));
  advance();
}

void LiveSwap::advance() {
  while (attempt_ && !attempt_->protocol.is_over()) {
    const SwapAction action = attempt_->protocol.action();
    if (action == SwapAction::kWatch) {  // by the steps that follow
      say(kProbationPhase);
      return report("activated");
    }
    const Clock::time_point start = Clock::now();
    const SwapEvent event = carry_out(action);
    const double ms = ms_since(start);
    attempt_->phases.emplace_back(std::string(name_of(action)) + "_ms", ms);
    attempt_->pause_ms += ms;
    attempt_->protocol.take(event);
  }
  if (attempt_) end(attempt_->protocol.action());
}

// A rank that fails tells the others, so that all take the same way. A failure of the run itself is thrown.
SwapEvent LiveSwap::carry_out(SwapAction action) {
  say(std::string(name_of(action)));
  std::optional<Error> failure;
  bool is_lost = false;
  try {
    act(action);
  } catch (const StateLost& error) {
    failure = error;
    is_lost = true;
  } catch (...) {
    failure = current_error();
    world().throw_if_another_failed();
    if (failure->code() == ExitCode::kCommunication) throw;
  }
  const std::string mine = failure ? (is_lost ? "lost " : "failed ") + std::string(failure->what()) : "";
  const std::vector<std::string> all = world().exchange(fmt::format("swap: {}", name_of(action)), mine);
  SwapEvent event = SwapEvent::kDone;
  for (const std::string& other : all) {
    if (other.empty()) continue;
    if (event == SwapEvent::kDone) {
      event = SwapEvent::kFailed;
      if (attempt_->cause.empty()) attempt_->cause = other.substr(other.find(' ') + 1);
    }
    if (other.starts_with("lost ")) event = SwapEvent::kLost;
  }
  const bool is_checked = action == SwapAction::kPrepare && attempt_->request.only_check;
  return event == SwapEvent::kDone && is_checked ? SwapEvent::kCancelled : event;
}

void LiveSwap::act(SwapAction action) {
  Attempt& a = *attempt_;
  const TrainerOptions& options = run_.trainer->options();
  switch (action) {
    case SwapAction::kPrepare:
      return prepare();
    case SwapAction::kQuiesce:
      return quiesce();
    case SwapAction::kWitness:
      a.before = a.witness->look(session().state(), step(), options.shape.num_micro_batches, options.seed);
      return;
    case SwapAction::kMigrate:
      return migrate();
    case SwapAction::kActivate:
      return activate();
    case SwapAction::kProve:
      return prove();
    case SwapAction::kCommit:
      return commit();
    case SwapAction::kMoveBack:
      return move_back();
    case SwapAction::kResume:
      return resume();
    case SwapAction::kDiscard:
      a.transfer.reset();
      a.next.reset();
      session().plugins().services().set_communicator(session().state().communicator.get());
      return;
    default:
      return;
  }
}

std::vector<ChangedKey> LiveSwap::check_change(const Config& before, const Config& after) const {
  const auto refuse = [](const std::string& what) {
    throw config_error(what).hint("save, stop, and start the run again with this configuration");
  };
  const Setting<int64_t>& global = after.settings().train.global_batch_size;
  std::vector<ChangedKey> keys = changed_keys(before, after);
  std::erase_if(keys, [&](const ChangedKey& key) { return key.key == global.key(); });
  std::vector<std::string> kept;
  for (const ChangedKey& key : keys)
    if (key.change == Change::kRestart) kept.push_back(fmt::format("{} ({} -> {})", key.key, key.before, key.after));
  if (!kept.empty())
    throw config_error(fmt::format("pending restart: {} cannot change while the run trains", fmt::join(kept, ", ")))
        .hint("stop the run, and start it again with these settings");
  if (run_.objective) refuse("a run with an objective of its own cannot be swapped yet");
  const int64_t rows = run_.trainer->options().shape.num_rows();
  if (global.is_set() && *global != rows)
    refuse(fmt::format("a step has {} rows, and would have {} after the swap", rows, *global));
  return keys;
}

void LiveSwap::prepare() {
  Attempt& a = *attempt_;
  world().run_and_agree("checking the swap", [&] {
    a.next = session().make_next(config_of(a.request, session().config(), a.left_out));
    a.keys = check_change(session().config(), a.next->config);
    if (a.keys.empty()) throw config_error("nothing changes: the run already has these settings");
    a.is_hot = std::ranges::all_of(a.keys, [](const ChangedKey& key) { return key.change == Change::kHot; });
    if (!a.is_hot) a.transfer.emplace(session().state(), a.next->state);
    a.witness.emplace(session(), a.next->state.model.compiled->layout());
  });
  for (const std::string& key : a.left_out)
    if (world().rank() == 0) counted_warning("options left out by a swap", key + " belongs to the plugin before");
  require_agreement();
  if (a.is_hot) return;
  const int rank = world().rank();
  const MemoryUsage usage = memory_usage();
  a.peak_planned = a.transfer->peak_bytes(rank);
  a.fit = fit_memory(*a.next->state.model.compiled, a.next->config, inputs_.plugin_path, world(),
                     {.held_bytes = usage.live_bytes, .peak_bytes = a.peak_planned});
  session().connect(*a.next, ++number_);
  // Shows that the backend works before anything depends on it.
  double one[] = {1.0};
  a.next->state.communicator->sum(a.next->state.communicator->group({}), one, "ranks of the next state");
  session().plugins().services().set_communicator(session().state().communicator.get());
}

// All ranks must have made the same.
void LiveSwap::require_agreement() {
  const NextState& next = *attempt_->next;
  std::string text = dotted_text(next.config.json());
  text += loaded_plugins_text(session().plugins().registry());
  text += next.state.model.plan->pipeline().text() + "\n";
  text += chosen_providers(*next.state.model.compiled).dump();
  world().expect_same("the swap", text);
}

void LiveSwap::quiesce() {
  run_.saves->finish();
  session().ranks().events().finish_step();
}

void LiveSwap::migrate() {
  Attempt& a = *attempt_;
  if (a.is_hot) return;
  PlacedModel& model = session().state().model;
  model.executor.reset();
  model.events.reset();
  a.moved = a.transfer->run(*session().state().communicator);
}

void LiveSwap::activate() {
  Attempt& a = *attempt_;
  if (a.is_hot) {
    session().exchange_config(a.next->config);
    a.is_exchanged = true;
    return;
  }
  session().make_executor(
      a.next->state,
      {.recompute = a.fit.recompute, .trace = run_.recorder(), .keeps_failed = true, .keeps_shards = true});
  session().exchange(*a.next);
  a.is_exchanged = true;
  a.fit_before = std::exchange(run_.fit, std::move(a.fit));
}

void LiveSwap::follow() {
  Session& s = session();
  const Settings& settings = s.settings();
  TrainerOptions options = trainer_options(inputs_, run_, run_.trainer->options().max_steps);
  // On probation, a step that is not finite undoes the swap, and does not end the run.
  if (attempt_->is_exchanged) options.nonfinite = NonFinite::kSkip;
  run_.trainer->set_options(std::move(options));
  inputs_.replicas.forget();
  if (control_) computes_ = plugins_of(s.config());
  if (attempt_->is_hot) return;
  const int64_t multiple = length_multiple(s.data_needs());
  run_.data->set_length_multiple(multiple);
  for (const auto& data : run_.eval_data) data->set_length_multiple(multiple);
  run_.step_data.emplace(step_data_bytes(s.program(), settings, batch_sizes(settings, s.ranks().num_data_ranks())),
                         MemoryCategory::kData);
  if (run_.trace) run_.trace->follow();
  run_.saves->reopen();
}

void LiveSwap::prove() {
  Attempt& a = *attempt_;
  if (!a.is_hot) world().run_and_agree("the parameters of the next state", [this] { session().refresh_parameters(); });
  follow();
  a.after = a.witness->look(session().state(), step(), run_.trainer->options().shape.num_micro_batches,
                            run_.trainer->options().seed);
  if (const std::string difference = SwapWitness::difference(a.before, a.after, session().compute() == Dtype::bf16);
      !difference.empty())
    throw Error(ExitCode::kNumeric, difference);
}

void LiveSwap::watch(const StepRecord& record) {
  Attempt& a = *attempt_;
  ++a.steps_watched;
  a.cause = defect(record);
  if (a.cause.empty() && a.steps_watched < kProbationSteps) return;
  a.protocol.take(a.cause.empty() ? SwapEvent::kDone : SwapEvent::kFailed);
  advance();
}

// The records of a step are the same on all ranks, and so is the result.
std::string LiveSwap::defect(const StepRecord& record) const {
  if (record.skipped || !std::isfinite(record.loss) || !std::isfinite(record.grad_norm))
    return fmt::format("step {} after the swap has loss {:g} and gradient norm {:g}", record.step, record.loss,
                       record.grad_norm);
  if (history_.size() < kFewestKnown) return "";
  std::vector<double> losses, norms;
  for (const auto& [loss, norm] : history_) losses.push_back(loss), norms.push_back(norm);
  const auto bound = [](const std::vector<double>& values, double least) {
    const double middle = median(values);
    std::vector<double> deviations;
    for (const double value : values) deviations.push_back(std::abs(value - middle));
    return middle + std::max(10.0 * median(deviations), least * std::abs(middle));
  };
  const double most_loss = bound(losses, 0.5), most_norm = bound(norms, 9.0);
  if (record.loss > most_loss)
    return fmt::format("step {} after the swap has loss {:g}; {:g} is the bound from {} steps before it", record.step,
                       record.loss, most_loss, history_.size());
  if (record.grad_norm > most_norm)
    return fmt::format("step {} after the swap has gradient norm {:g}; {:g} is the bound from {} steps before it",
                       record.step, record.grad_norm, most_norm, history_.size());
  return "";
}

void LiveSwap::commit() {
  world().run_and_agree("committing the swap", [this] {
    if (world().rank() != 0) return;
    run_.directory->describe(session().config(), session().plugins().registry(), session().compiled());
  });
  ++generation_;
  run_.trainer->set_options(trainer_options(inputs_, run_, run_.trainer->options().max_steps));
}

void LiveSwap::move_back() {
  Attempt& a = *attempt_;
  run_.saves->finish();
  if (a.is_hot) {
    if (std::exchange(a.is_exchanged, false)) session().exchange_config(a.next->config);
    return;
  }
  if (a.is_exchanged) {  // kActivate may have failed before
    session().exchange(*a.next);
    run_.fit = std::move(a.fit_before);
    a.is_exchanged = false;
  }
  PlacedModel& next = a.next->state.model;
  next.executor.reset();
  next.events.reset();
  a.moved = a.transfer->run_back(*session().state().communicator);
}

void LiveSwap::resume() {
  if (attempt_->is_hot) return follow();
  session().make_executor(
      session().state(),
      {.recompute = run_.fit.recompute, .trace = run_.recorder(), .keeps_failed = true, .keeps_shards = true});
  session().refresh_parameters();
  follow();
}

void LiveSwap::end(SwapAction outcome) {
  const bool is_checked = outcome == SwapAction::kRefused && attempt_->request.only_check && attempt_->cause.empty();
  report(is_checked ? "checked" : std::string(name_of(outcome)));
  if (outcome == SwapAction::kLost)
    throw Error(ExitCode::kInternal,
                "swap " + attempt_->request.id + " lost the tensors of the run: " + attempt_->cause)
        .hint("the same command continues the run; " + run_.saves->last_checkpoint_text());
  attempt_.reset();
}

void LiveSwap::report(const std::string& outcome) {
  const Attempt& a = *attempt_;
  SwapRecord record{.step = a.first_step,
                    .generation = generation_,
                    .id = a.request.id,
                    .outcome = outcome,
                    .cause = a.cause,
                    .change = text_of(a.keys)};
  record.values = a.phases;
  record.values.emplace_back("pause_ms", a.pause_ms);
  record.values.emplace_back("tensors", static_cast<double>(a.moved.num_tensors));
  record.values.emplace_back("kept", static_cast<double>(a.moved.num_kept));
  record.values.emplace_back("sent_bytes", static_cast<double>(a.moved.moved.sent_bytes));
  record.values.emplace_back("received_bytes", static_cast<double>(a.moved.moved.received_bytes));
  record.values.emplace_back("local_bytes", static_cast<double>(a.moved.moved.local_bytes));
  record.values.emplace_back("rounds", static_cast<double>(a.moved.moved.num_rounds));
  record.values.emplace_back("planned_peak_bytes", static_cast<double>(a.peak_planned));
  record.values.emplace_back("witness_loss_before", a.before.loss);
  record.values.emplace_back("witness_loss_after", a.after.loss);
  if (world().rank() == 0) {
    const std::string what = fmt::format("swap {} {} after step {}", record.id, outcome, record.step);
    if (outcome == "refused" || outcome == "rolled back")
      counted_warning("swaps " + outcome, what + ": " + a.cause);
    else
      log::info("{} ({}), {:.0f} ms", what, record.change, a.pause_ms);
  }
  run_.sinks.write(step(), [&](MetricsSink& sink) { sink.swap(record); });
  if (!control_ || outcome == "activated") return;
  control_->set_generation(generation_);
  if (!a.request.is_of_operator) return;
  Json facts = {{"change", record.change}, {"pause_ms", a.pause_ms}};
  if (a.moved.num_tensors > 0) {
    facts["moved_tensors"] = a.moved.num_tensors - a.moved.num_kept;
    facts["sent_bytes"] = a.moved.moved.sent_bytes;
  }
  control_->finish(outcome == "committed" || outcome == "checked", outcome, a.cause, facts);
}

void LiveSwap::say(const std::string& phase) {
  if (control_ && attempt_->request.is_of_operator) control_->phase(phase);
}

}  // namespace chassis
