// Answers come from the same code as those of [sample] and of `chassis generate --prompts`.
#include "host/train/generation_sets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "host/data/generation_config.hpp"
#include "host/generate/generation_settings.hpp"
#include "host/save/weights.hpp"

namespace chassis {
namespace {

using SetSettings = Settings::GenerationSet;
using ScoreClock = std::chrono::steady_clock;

const std::string kOver = "the run is to stop";

// Greedy, unless [generate] asks for sampling: generation_config.json alone does not make scores random.
Answerer make_answerer_of_sets(Session& session) {
  const Settings& settings = session.settings();
  if (session.tokenizer() == nullptr)
    throw config_error(settings.eval.generate[0].path,
                       "the rows of " + settings.eval.generate[0].key() + " are texts, and the run has no tokenizer")
        .hint("set [tokenizer] plugin");
  GenerationConfig file = generation_config_of(settings);
  const Settings::Generate& wanted = settings.generate;
  const bool samples =
      wanted.temperature.is_set() || wanted.top_p.is_set() || wanted.top_k.is_set() || wanted.min_p.is_set();
  if (!samples) file.do_sample = false;
  return Answerer(session, generation_settings(settings, file, *session.tokenizer()));
}

std::vector<PromptRow> rows_of_set(const SetSettings& set) {
  std::vector<PromptRow> rows;
  try {
    rows = read_prompts(set.path);
  } catch (const Error& error) {
    if (!error.where().file.empty()) throw;
    throw config_error(set.path, set.path.key() + ": " + error.message()).hint(error.hint_text());
  }
  if (const auto most = static_cast<size_t>(*set.max_rows); most > 0 && rows.size() > most)
    rows.erase(rows.begin() + static_cast<ptrdiff_t>(most), rows.end());
  return rows;
}

Scorer make_scorer(const SetSettings& set) {
  ScoreRule rule{.score = set.score, .command = set.command};
  if (set.pattern.is_set()) rule.pattern = set.pattern;
  const double milliseconds = 1000.0 * *set.command_timeout_s;
  rule.command_timeout = std::chrono::milliseconds(static_cast<int64_t>(milliseconds));
  try {
    return Scorer(rule);
  } catch (const Error& error) {
    const ConfigEntry& key = set.score == AnswerScore::kCommand ? static_cast<const ConfigEntry&>(set.command) : set;
    throw config_error(key, key.key() + ": " + error.message()).hint(error.hint_text());
  }
}

std::string text_of_rows(const std::vector<PromptRow>& rows) {
  std::string text;
  for (const PromptRow& row : rows) text += json_line(row.row) + "\n";
  return text;
}

// The time after which rank 0 tells the others that it still scores, apart from the time of one judge.
std::chrono::duration<double> silence_of(const World& world) {
  return std::min(std::chrono::duration<double>(5), std::chrono::duration<double>(world.deadline()) / 4);
}

std::string line_of_answer(const PromptRow& prompt, const Answer& answer, bool has_passed) {
  Json row = prompt.row;
  row["answer"] = answer.text;
  row["finish_reason"] = answer.finish_reason;
  row["passed"] = has_passed;
  return json_line(row) + "\n";
}

}  // namespace

GenerationSets::GenerationSets(Session& session, std::function<bool()> is_over)
    : session_(session), is_over_(std::move(is_over)) {
  const SettingTables<SetSettings>& sets = session.settings().eval.generate;
  if (sets.empty()) return;
  answerer_.emplace(make_answerer_of_sets(session));
  for (const SetSettings& set : sets) sets_.push_back(open(set));
}

GenerationSets::Set GenerationSets::open(const SetSettings& settings) {
  Set set{.name = settings.name,
          .scorer = make_scorer(settings),
          .options = answerer_->options(),
          .rows = rows_of_set(settings),
          .ids = {}};
  set.options.max_new_tokens = settings.max_new_tokens;
  for_rows(set.rows, [&](size_t i) {
    set.scorer.check(set.rows[i].row);
    if (set.rows[i].row.contains("passed"))
      throw config_error("has a key 'passed', which the row of the answer would have").hint("rename that key");
  });
  set.ids = ids_of_rows(session_, *answerer_, set.rows);
  World& world = session_.world();
  world.expect_same(settings.path.key(), text_of_rows(set.rows));
  const std::chrono::duration<double> deadline = world.deadline(), most = deadline - silence_of(world);
  if (settings.score == AnswerScore::kCommand && world.size() > 1 && *settings.command_timeout_s >= most.count())
    throw config_error(
        settings.command_timeout_s,
        fmt::format("{} = {:g} must be less than {:g}, with comm.timeout_s = {:g}: rank 0 runs the "
                    "program, and the other ranks wait",
                    settings.command_timeout_s.key(), *settings.command_timeout_s, most.count(), deadline.count()));
  return set;
}

std::vector<Answer> GenerationSets::answers_to(const Set& set) {
  const auto request_of = [&](size_t i) {
    return AnswerRequest{.prompt = set.ids[i],
                         .stream = "eval/" + set.name + "/" + std::to_string(i),
                         .continues_text = !set.rows[i].chat,
                         .options = set.options};
  };
  std::vector<Answer> answers;
  const auto keep = [&](size_t, Answer answer) { answers.push_back(std::move(answer)); };
  if (!answerer_->answer_all(0, set.rows.size(), request_of, keep, [this] { return gives_up(); })) answers.clear();
  session_.ranks().events().finish_step();
  return answers;
}

bool GenerationSets::gives_up() {
  constexpr uint64_t kStepsOfOneAnswer = 64;
  if (!is_over_) return false;
  if (session_.world().size() == 1) return is_over_();
  if (++num_asked_ % kStepsOfOneAnswer != 0) return false;
  return find_on_rank_0(session_.world(), "answering prompts", [this] { return is_over_() ? kOver : ""; }) == kOver;
}

// The other ranks hear from rank 0 every few seconds, since they would not wait for longer than comm.timeout_s.
std::optional<std::vector<bool>> GenerationSets::score(const Set& set, const std::vector<Answer>& answers) {
  std::vector<bool> passed;
  const auto score_some = [&] {
    const auto silence = std::chrono::duration_cast<ScoreClock::duration>(silence_of(session_.world()));
    const ScoreClock::time_point end = ScoreClock::now() + silence;
    while (passed.size() < answers.size() && ScoreClock::now() < end && !is_over_here())
      passed.push_back(set.scorer.passes(set.rows[passed.size()].row, answers[passed.size()].text));
    return passed.size() < answers.size() && is_over_here() ? kOver : std::to_string(passed.size());
  };
  for (size_t done = 0; done < answers.size();) {
    const std::string said = find_on_rank_0(session_.world(), "scoring the answers of " + set.name, score_some);
    if (said == kOver) return std::nullopt;
    done = std::stoull(said);
  }
  return passed;
}

std::optional<ScoreRecord> GenerationSets::evaluate(size_t index) {
  const ScoreClock::time_point start = ScoreClock::now();
  const Set& set = sets_.at(index);
  const std::vector<Answer> answers = answers_to(set);
  if (answers.empty()) return std::nullopt;
  const std::optional<std::vector<bool>> scored = score(set, answers);
  if (!scored) return std::nullopt;
  const std::vector<bool>& passed = *scored;
  ScoreRecord record;
  record.name = set.name;
  std::array<double, 3> counts{};  // answers that passed, that were cut, and all; zeros on the other ranks
  for (size_t i = 0; i < passed.size(); ++i) {
    record.answers += line_of_answer(set.rows[i], answers[i], passed[i]);
    counts[0] += passed[i] ? 1.0 : 0.0;
    counts[1] += answers[i].finish_reason == "length" ? 1.0 : 0.0;
    counts[2] += 1.0;
  }
  session_.ranks().sum(counts, "evaluation");
  record.num_passed = static_cast<uint64_t>(counts[0]);
  record.num_cut = static_cast<uint64_t>(counts[1]);
  record.num_rows = static_cast<uint64_t>(counts[2]);
  record.seconds = std::chrono::duration<double>(ScoreClock::now() - start).count();
  return record;
}

std::vector<std::string> generation_source_files(const Settings& settings) {
  std::vector<std::string> files;
  for (const SetSettings& set : settings.eval.generate) files.push_back(set.path);
  return files;
}

}  // namespace chassis
