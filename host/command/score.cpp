// `chassis score`: the scores that a reward model or a classifier gives to the rows of a file, one line of JSON for
// each.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/output.hpp"
#include "host/command/generation.hpp"
#include "host/command/weights_arguments.hpp"
#include "host/config/task_table.hpp"
#include "host/data/eval_data.hpp"
#include "host/save/weights.hpp"
#include "host/session/fields.hpp"
#include "host/session/join.hpp"
#include "host/session/sequence_values.hpp"
#include "host/session/session.hpp"

namespace chassis {
namespace {

struct ScoreArguments {
  ConfigArguments config;
  WeightsArguments weights;
  std::string rows, out;
};

// One row of the file is one sequence in one row of a batch, in the order of the file.
EvalData open_rows(Session& session, const std::string& path) {
  DataConfig data = data_config(session.data_needs());
  data.packing = Packing::kNone;
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_TEXTS, .scores = true};
  data.max_drop_ratio = 0;  // a row without a score would leave a hole
  data.overflow = Overflow::kError;
  DataSetConfig set;
  set.path = path;
  set.format = DataFormat::kClassification;
  set.has_targets = false;
  set.needs_answer = session.settings().train.task == Task::kReward;
  set.key = "--rows";
  set.row_files = session.data_needs().row_files;
  return EvalData(set, data, session.tokenizer());
}

// The scores of a batch's rows, on ranks with the last stage.
std::vector<double> scores_of(Session& session, const Batch& batch, size_t width) {
  const StreamValues outputs = session.executor().outputs(Purpose::kLoss, to_fields(batch, session.device()));
  return outputs.empty() ? std::vector<double>() : sequence_scores(batch, outputs, width);
}

int score_rows(Session& session, const ScoreArguments& arguments) {
  EvalData data = open_rows(session, arguments.rows);
  require_adapter_of_run(session, run_of(arguments.weights.from));
  session.allocate();
  load_weights(session, arguments.weights.from);
  const Ranks ranks = session.ranks();
  const int64_t size = session.settings().train.micro_batch_size;
  const auto width = static_cast<size_t>(session.objective()->request().num_scores);
  std::vector<double> scores;
  while (const std::optional<Batch> batch = data.next(size)) {  // every data-parallel rank scores every row
    const std::vector<double> more = scores_of(session, *batch, width);
    scores.insert(scores.end(), more.begin(), more.end());
  }
  ranks.events().finish_step();
  std::vector<double> all(data.num_rows() * width);
  if (ranks.counts_rows() && ranks.data_rank() == 0) std::ranges::copy(scores, all.begin());
  ranks.sum(all, "scores");
  if (session.world().rank() != 0) return 0;
  std::string text;
  for (uint64_t row = 0; row < data.num_rows(); ++row) {
    const std::vector<double> values(all.begin() + static_cast<ptrdiff_t>(row * width),
                                     all.begin() + static_cast<ptrdiff_t>((row + 1) * width));
    Json line = {{"line", data.source().store().origin(row).line}};
    if (width == 1)
      line["score"] = values[0];
    else
      line["scores"] = values;
    text += line.dump() + "\n";
  }
  if (arguments.out.empty())
    std::fputs(text.c_str(), output());
  else
    write_file_atomic(arguments.out, text);
  return 0;
}

}  // namespace

Verb add_score(CLI::App& app) {
  auto arguments = std::make_shared<ScoreArguments>();
  arguments->config.add_to(app);
  app.add_option("--rows", arguments->rows,
                 "a data file with rows {\"text\": …}, {\"messages\": […]} or {\"prompt\": …, \"completion\": …}")
      ->required();
  app.add_option("--out", arguments->out,
                 "write the lines {\"line\": …, \"score\": …} to this file; default standard output");
  arguments->weights.add_to(app);
  arguments->config.add_ranks_to(app);
  const auto start_ranks = [=] {
    arguments->weights.choose_adapter(arguments->config, ConfigUse::kScoring);
    return arguments->config.run_ranks(ConfigUse::kScoring);
  };
  const auto run = [=] {
    Config given = arguments->config.load(ConfigUse::kScoring);
    const Setting<Task>& task = given.settings().train.task;
    if (!spec_of(task).has_scores)
      throw config_error(task, fmt::format("train.task = \"{}\": the model has no head of scores", to_text(*task)))
          .hint("`chassis score` needs a configuration with train.task = \"reward\" or \"classify\"");
    return join_world(given.settings().comm, [&](World& world) {
      Session session(std::move(given), {.plugin_path = arguments->config.plugin_path, .world = &world});
      return score_rows(session, *arguments);
    });
  };
  return {start_ranks, run};
}

}  // namespace chassis
