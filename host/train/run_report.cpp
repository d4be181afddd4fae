// Formats the log lines about data, results and memory, and the hints at the end of a run.
#include "host/train/run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "host/base/mesh_axes.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/config/task_table.hpp"
#include "host/save/adapter_files.hpp"
#include "host/text/run_chat.hpp"

namespace chassis {
namespace {

// Overrides that make a mesh of one rank, as words of a command.
std::string one_process(const Settings::Mesh& mesh) {
  std::string words;
  for (size_t i = 0; i < kMeshAxes.size(); ++i)
    if (mesh.sizes[i].by_user() && mesh.sizes[i] > 1) words += " " + mesh_key(kMeshAxes[i].name) + "=1";
  return words;
}

}  // namespace

std::string shell_word(const std::string& path) {
  const bool plain = std::all_of(path.begin(), path.end(), [](unsigned char c) {
    return std::isalnum(c) || c >= 0x80 ||
           std::string_view("/._-+=,@%").find(static_cast<char>(c)) != std::string::npos;
  });
  if (plain) return path;
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string data_text(const TrainData& data, int64_t step, int64_t num_steps, int64_t rows_per_step) {
  uint64_t num_documents = 0, num_tokens = 0;
  for (const RowSource& set : data.sets()) {
    num_documents += set.num_usable_documents();
    num_tokens += set.num_usable_tokens();
  }
  const double rows_left = static_cast<double>(num_steps - step) * static_cast<double>(rows_per_step);
  const double epochs_left = rows_left / data.num_rows_per_epoch();
  const std::string steps = step == 0 ? fmt::format("{} steps are {:.3g} epochs", num_steps, epochs_left)
                                      : fmt::format("{} of {} steps are left: {:.3g} epochs, after {:.3g} epochs",
                                                    num_steps - step, num_steps, epochs_left, data.epoch());
  return fmt::format("data: {} documents, {} tokens{}; {}", num_documents, count_text(static_cast<double>(num_tokens)),
                     data.sets().size() > 1 ? fmt::format(" in {} sets", data.sets().size()) : "", steps);
}

std::string warmup_warning(const Settings& settings, const LearningRateSchedule& schedule) {
  if (schedule.warmup_steps <= schedule.max_steps) return "";
  return fmt::format(
      "{} = {} is more than the {} steps of the run: the learning rate ends at {:.3g} and never reaches {} = {:g}; "
      "lower {}, or train.global_batch_size for more steps",
      settings.schedule.warmup_steps.key(), schedule.warmup_steps, schedule.max_steps, schedule.at(schedule.max_steps),
      settings.optimizer.lr.key(), schedule.peak, settings.schedule.warmup_steps.key());
}

LearningRateSchedule schedule_of(const Settings& settings, int64_t max_steps) {
  const Settings::Schedule& schedule = settings.schedule;
  return {schedule.name,        settings.optimizer.lr, schedule.warmup_steps,
          schedule.decay_steps, schedule.min_lr_ratio, max_steps};
}

std::string rate_warning(const Settings& settings, const LearningRateSchedule& schedule, int64_t step) {
  const int64_t num_left = schedule.max_steps - step;
  if (num_left <= 0 || !schedule.is_zero_after(step)) return "";
  if (schedule.peak == 0.0) return fmt::format("{} = 0 trains nothing", settings.optimizer.lr.key());
  return fmt::format(
      "{} = {:g}: the schedule \"{}\" ends at the rate 0, and {} its end, so nothing is learned; train for more steps, "
      "raise {}, or set {} = \"constant\"",
      settings.schedule.min_lr_ratio.key(), schedule.min_ratio, to_text(schedule.curve),
      num_left == 1 ? "the only step that is left is at" : fmt::format("the {} steps that are left are at", num_left),
      settings.schedule.min_lr_ratio.key(), settings.schedule.name.key());
}

std::string rows_warning(const Settings& settings, const TrainData& data, int64_t rows_per_step) {
  const double rows = data.num_rows_per_epoch();
  if (static_cast<double>(rows_per_step) <= rows) return "";
  return fmt::format(
      "{}: a step takes {} rows of {} tokens, and the data fills {:.3g}: each step trains it {:.3g} times; lower {}",
      settings.train.global_batch_size.key(), rows_per_step, *settings.train.seq_len, rows,
      static_cast<double>(rows_per_step) / rows, settings.train.global_batch_size.key());
}

std::vector<std::pair<std::string, std::string>> unreached_warnings(const TrainData& data, uint64_t num_rows) {
  std::vector<std::pair<std::string, std::string>> warnings;
  for (const size_t set : data.sets_not_reached(num_rows)) {
    const DataSetConfig& config = data.sets()[set].config();
    warnings.emplace_back(
        "data.not_reached " + config.key,
        fmt::format("{} ({}) is not trained: its share of the rows is {:.3g}, and the run takes {} rows of all sets; "
                    "raise its weight, or train for more steps",
                    config.key, printable(config.path, 4096), data.share(set), num_rows + data.num_rows_taken()));
  }
  return warnings;
}

std::string rows_taken_text(const TrainData& data) {
  if (data.sets().size() < 2) return "";
  const std::vector<double> passes = data.passes();
  std::string text;
  for (size_t i = 0; i < data.sets().size(); ++i)
    text += fmt::format("{} {} ({}) {} ({:.3g} epochs)", i == 0 ? "rows taken:" : ",", data.sets()[i].config().key,
                        printable(data.sets()[i].config().path, 4096), data.cursor().sets[i].num_rows, passes[i]);
  return text;
}

std::string packing_text(const TrainData& data, const Program& program) {
  if (data.packing() == Packing::kConcatSplit) return "";
  if (data.lengths().vary()) {
    const std::vector<int64_t> lengths = data.lengths().all();
    return fmt::format(
        "packing none: micro-batches are as long as their longest row, rounded up to one of {} lengths up to {}",
        lengths.size(), lengths.back());
  }
  std::string text =
      fmt::format("packing {}: {:.2f} of the tokens of a row are used", to_text(data.packing()), data.utilisation());
  const std::string op = data.packing() == Packing::kNone ? op_that_may_read_padding(program) : "";
  if (!op.empty()) text += fmt::format("; all are computed, since the op '{}' may mix them", op);
  return text;
}

std::string positions_text(const DataStats& stats) {
  if (stats.num_padding == 0 && stats.num_cut == 0) return "";
  const auto padding = static_cast<double>(stats.num_padding);
  const double computed = padding + static_cast<double>(stats.num_tokens);
  std::string text = fmt::format("positions: {} computed, {} ({:.1f} %) of them padding", count_text(computed),
                                 count_text(padding), 100 * padding / computed);
  if (stats.num_cut > 0)
    text += fmt::format("; {} of padding not computed", count_text(static_cast<double>(stats.num_cut)));
  return text;
}

std::string results_text(const Settings& settings, const PluginTokenizer* tokenizer, const std::string& directory) {
  std::string when;
  const int64_t steps = settings.checkpoint.every_steps;
  if (steps > 0) when = fmt::format(" every {} steps", steps);
  if (const double minutes = settings.checkpoint.every_minutes; minutes > 0.0)
    when += fmt::format("{} every {:g} minutes", when.empty() ? "" : ",", minutes);
  std::string text = fmt::format("results: {}: log.txt", directory);
  for (const std::string& sink : *settings.log.sinks)
    if (sink == "jsonl") text += ", metrics.jsonl (every step)";
  if (!settings.eval.generate.empty()) text += ", generations/ (answers of evaluations)";
  text += fmt::format(", checkpoints/ ({}at the end)", when.empty() ? "" : when.substr(1) + ", ");
  const bool is_alone = tokenizer && tokenizer->directory().empty() && !settings.model.path.is_set();
  if (settings.exports.when != ExportWhen::kNever)
    text += is_alone
                ? fmt::format(", final/ (the model; no tokenizer files, since '{}' has none)", tokenizer->id())
                : fmt::format(", final/ ({})", settings.exports.plugin == kAdapterFormat ? "the adapter" : "the model");
  return text + "; Ctrl-C saves and stops";
}

std::string memory_text(const PlanMemory& planned, const PlanMemory& measured, uint64_t measured_peak_bytes,
                        uint64_t process_bytes, bool by_category) {
  std::string text =
      fmt::format("memory peak {} planned, {} measured ({:+.1f} %); process {}", bytes_text(planned.peak_bytes),
                  bytes_text(measured_peak_bytes),
                  100.0 * (static_cast<double>(planned.peak_bytes) / static_cast<double>(measured_peak_bytes) - 1.0),
                  bytes_text(process_bytes));
  text += fmt::format("\n  {:<24}{:>12}{}", "", "planned", by_category ? fmt::format("{:>12}", "measured") : "");
  for (size_t i = 0; i < kNumPlanCategories; ++i) {
    const uint64_t expected = planned.categories[i].peak_bytes, found = measured.categories[i].peak_bytes;
    if (expected == 0 && (!by_category || found == 0)) continue;
    text += fmt::format("\n  {:<24}{:>12}{}", plan_category_name(static_cast<PlanCategory>(i)), bytes_text(expected),
                        by_category ? fmt::format("{:>12}", bytes_text(found)) : "");
  }
  return text;
}

std::string resume_hint(const Settings& settings, const Stopped& stopped) {
  const std::string step = stopped.directory + "/checkpoints/" + step_directory_name(stopped.step);
  const ResumeFrom& resume = settings.run.resume;
  std::string text;
  if (!stopped.is_saved)
    text = fmt::format("step {} could not be saved; from the checkpoint before it, if there is one, ", stopped.step);
  if (stopped.is_saved && !stopped.is_resumable)
    text = step + " holds only weights (checkpoint.contents = \"model_only\") and cannot be resumed; a run with " +
           "model.path=" + step + " and another run.output_dir can start from them";
  else if (resume == Resume::kAuto)
    text += "resume with the same command";
  else
    text += "resume with the same command plus run.resume=auto, since run.resume is \"" + resume.text + "\" here";
  return text + "; exit code 75";
}

std::string next_steps(const Settings& settings, const PluginTokenizer* tokenizer, const std::string& directory,
                       bool early, const std::vector<std::string>& plugin_path) {
  std::string text = "next: ", folders;
  for (const std::string& folder : plugin_path) folders += " --plugin-path " + shell_word(folder);
  if (tokenizer != nullptr) {
    const bool has_scores = spec_of(settings.train.task).has_scores;
    text += (has_scores ? "chassis score " : "chassis generate ") + shell_word(directory + "/resolved.toml") + folders +
            one_process(settings.mesh) +
            (has_scores               ? " --rows FILE; "
             : trains_chats(settings) ? " --chat; "
                                      : " --prompt TEXT; ");
  }
  return text + "raise " +
         (early                        ? "eval.patience"
          : settings.run.max_steps > 0 ? "run.max_steps"
                                       : "run.epochs") +
         " to train further";
}

}  // namespace chassis
