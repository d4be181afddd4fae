// `chassis eval`: evaluates every evaluation set once, with the newest weights. Writes no answers.
#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "host/base/json.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/command/generation.hpp"
#include "host/command/json_document.hpp"
#include "host/command/weights_arguments.hpp"
#include "host/save/weights.hpp"
#include "host/session/join.hpp"
#include "host/session/objective_step.hpp"
#include "host/session/reference_values.hpp"
#include "host/session/session.hpp"
#include "host/train/generation_sets.hpp"
#include "host/train/trainer.hpp"

namespace chassis {
namespace {

Json evaluate_loss_of(Session& session, ObjectiveStep* objective, EvalData& data, const std::string& name,
                      bool prints) {
  const EvalRecord record = evaluate(session, objective, data);
  if (record.perplexity) {
    if (prints)
      std::fprintf(output(), "%s loss %.6f perplexity %.4f tokens %llu\n", printable(name).c_str(), record.loss,
                   *record.perplexity, static_cast<unsigned long long>(record.trained_tokens));
    return {
        {"name", name}, {"loss", record.loss}, {"perplexity", *record.perplexity}, {"tokens", record.trained_tokens}};
  }
  Json json = {{"name", name}, {"loss", record.loss}, {"rows", record.num_units}};
  std::string metrics;
  for (const auto& [metric, value] : record.objective) {
    metrics += fmt::format(" {} {:.6f}", metric, value);
    json[metric] = value;
  }
  if (prints)
    std::fprintf(output(), "%s loss %.6f%s rows %llu\n", printable(name).c_str(), record.loss, metrics.c_str(),
                 static_cast<unsigned long long>(record.num_units));
  return json;
}

Json evaluate_answers_of(GenerationSets& sets, size_t index, bool prints) {
  const ScoreRecord record = sets.evaluate(index).value();
  if (prints)
    std::fprintf(output(), "%s score %.6f passed %llu of %llu cut %llu\n", printable(record.name).c_str(),
                 record.score(), static_cast<unsigned long long>(record.num_passed),
                 static_cast<unsigned long long>(record.num_rows), static_cast<unsigned long long>(record.num_cut));
  return {{"name", record.name},
          {"score", record.score()},
          {"passed", record.num_passed},
          {"rows", record.num_rows},
          {"cut", record.num_cut}};
}

}  // namespace

Verb add_eval(CLI::App& app) {
  auto arguments = std::make_shared<ConfigArguments>();
  auto weights = std::make_shared<WeightsArguments>();
  auto as_json = std::make_shared<bool>(false);
  arguments->add_to(app);
  weights->add_to(app);
  add_json(app, *as_json);
  arguments->add_ranks_to(app);
  const auto start_ranks = [=] {
    weights->choose_adapter(*arguments, ConfigUse::kEvaluation);
    return arguments->run_ranks(ConfigUse::kEvaluation);
  };
  const auto run = [=] {
    Config given = arguments->load(ConfigUse::kEvaluation);
    return join_world(given.settings().comm, [&](World& world) {
      Session session(std::move(given), {.plugin_path = arguments->plugin_path, .world = &world});
      const Settings& settings = session.settings();
      // As in training, the first rank of a machine prepares the data, and the others then find it prepared.
      std::vector<std::unique_ptr<EvalData>> sets;
      world.run_and_agree("preparing data", [&] {
        if (world.launch().local_rank == 0) sets = open_eval_data(session.data_needs());
      });
      if (sets.empty()) sets = open_eval_data(session.data_needs());
      check_seq_len(session.model(), session.program(), settings.train.seq_len);
      GenerationSets generation_sets(session);
      std::optional<ReferenceModel> reference;
      std::optional<ObjectiveStep> objective;
      if (session.objective() != nullptr) {
        if (!precomputes_reference(session) && session.objective()->needs_reference()) reference.emplace(session);
        objective.emplace(session, reference ? &*reference : nullptr);
      }
      require_adapter_of_run(session, run_of(weights->from));
      session.allocate();
      if (reference && reference->has_copy()) {
        reference->allocate();
        load_reference_weights(session);
        reference->take();
      }
      if (precomputes_reference(session))
        precompute_reference(session, nullptr, sets, [&] { load_reference_weights(session); });
      load_weights(session, weights->from);
      const bool prints = world.rank() == 0 && !*as_json;
      Json results = Json::array();
      for (size_t i = 0; i < sets.size(); ++i)
        results.push_back(evaluate_loss_of(session, objective ? &*objective : nullptr, *sets[i],
                                           eval_name(settings.data, i), prints));
      for (size_t i = 0; i < generation_sets.size(); ++i)
        results.push_back(evaluate_answers_of(generation_sets, i, prints));
      if (world.rank() == 0 && *as_json) print_document("eval", {{"sets", std::move(results)}});
      return 0;
    });
  };
  return {start_ranks, run};
}

}  // namespace chassis
