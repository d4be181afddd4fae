// Checks the description of an objective and every number that it gives.
#include "host/objective/objective_plugin.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr uint32_t kKnownNeeds = CHASSIS_OBJECTIVE_REFERENCE | CHASSIS_OBJECTIVE_GLOBAL | CHASSIS_OBJECTIVE_MISMATCH |
                                 CHASSIS_OBJECTIVE_TOKENS | CHASSIS_OBJECTIVE_OLD_LOGPS | CHASSIS_OBJECTIVE_TEACHER |
                                 CHASSIS_OBJECTIVE_STOPPED_RATIO | CHASSIS_OBJECTIVE_MARGINS;
constexpr uint32_t kMaxNames = 1024;
constexpr uint32_t kMaxSize = 1 << 20;
constexpr uint32_t kMaxTopK = 1 << 12;
constexpr size_t kMaxNameBytes = 128;

// Terms and metrics are columns of files and labels of charts.
bool is_plain_name(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./@").find(c) != std::string_view::npos;
  });
}

std::string_view role_text(uint32_t role) {
  switch (role) {
    case CHASSIS_SEQUENCE_ANSWER:
      return "ANSWER";
    case CHASSIS_SEQUENCE_CHOSEN:
      return "CHOSEN";
    case CHASSIS_SEQUENCE_REJECTED:
      return "REJECTED";
    case CHASSIS_SEQUENCE_MISMATCH:
      return "MISMATCH";
    default:
      return "?";
  }
}

// The elements of an array that applies to an objective. Never NULL, so that a plugin can tell an empty array from one
// that does not apply.
template <class T>
const T* elements_of(const std::vector<T>& array) {
  static const T none{};
  return array.empty() ? &none : array.data();
}
template <class T>
T* elements_of(std::vector<T>& array) {
  array.reserve(1);
  return array.data();
}
template <class T>
const T* elements_if(bool applies, const std::vector<T>& array, uint64_t count, std::string_view name) {
  if (!applies) return nullptr;
  CHASSIS_CHECK(
      array.size() == count,
      fmt::format("the array {} of a batch of an objective has {} elements, expected {}", name, array.size(), count));
  return elements_of(array);
}

// Index of the first element that fails the test; the size if none does.
template <class F>
size_t find_not(const std::vector<double>& array, F&& test) {
  return static_cast<size_t>(std::find_if_not(array.begin(), array.end(), test) - array.begin());
}
bool is_finite(double value) { return std::isfinite(value); }
bool is_not_infinite(double value) { return !std::isinf(value); }

// "sequence 3, CHOSEN of unit 1".
std::string sequence_text(const ObjectiveBatch& batch, size_t sequence) {
  return fmt::format("sequence {}, {} of unit {}", sequence, role_text(batch.role[sequence]), batch.unit[sequence]);
}

}  // namespace

bool is_name_of_records(std::string_view name) {
  constexpr std::string_view kNames[] = {"step",
                                         "time",
                                         "eval",
                                         "name",
                                         "score",
                                         "loss",
                                         "eval_loss",
                                         "grad_norm",
                                         "lr",
                                         "epoch",
                                         "tokens",
                                         "tokens_per_s",
                                         "step_ms",
                                         "data_ms",
                                         "forward_ms",
                                         "trained_tokens",
                                         "backward_ms",
                                         "values_ms",
                                         "save_ms",
                                         "skipped",
                                         "perplexity",
                                         "optimizer_ms",
                                         "rows",
                                         "seconds",
                                         "cut",
                                         "prompt",
                                         "answer",
                                         "peak_memory_bytes",
                                         "active_memory_bytes",
                                         "reserved_memory_bytes"};
  constexpr std::string_view kFolders[] = {"loss/", "memory/", "comm/", "eval/", "router/"};
  return std::ranges::find(kNames, name) != std::end(kNames) ||
         std::ranges::any_of(kFolders, [&](std::string_view folder) { return name.starts_with(folder); });
}

size_t sequence_of_token(const ObjectiveBatch& batch, size_t token) {
  const auto after = std::upper_bound(batch.first_token.begin(), batch.first_token.end(), token);
  return static_cast<size_t>(after - batch.first_token.begin()) - 1;
}

SequenceNeeds needs_of(const ObjectiveDesc& desc) {
  return {.units = desc.units,
          .mismatches = desc.needs_mismatches(),
          .old_logps = desc.needs_old_logps(),
          .num_targets = desc.num_targets,
          .num_classes = desc.num_classes,
          .scores = desc.scores(),
          .top_k = desc.top_k,
          .margins = desc.needs_margins()};
}

chassis_objective_batch_t ObjectiveBatch::view(const ObjectiveDesc& desc, bool is_evaluated) const {
  const uint64_t sequences = num_sequences(), tokens = desc.needs_tokens() ? num_tokens() : 0;
  const bool logps = !desc.scores(), by_token = desc.needs_tokens(), reference = desc.needs_reference();
  chassis_objective_batch_t out{};
  out.struct_size = sizeof out;
  out.num_sequences = sequences;
  out.num_tokens = tokens;
  out.role = elements_if(true, role, sequences, "role");
  out.unit = elements_if(true, unit, sequences, "unit");
  out.target = elements_if(desc.num_targets > 0, target, sequences * desc.num_targets, "target");
  out.margin = elements_if(desc.needs_margins(), margin, sequences, "margin");
  out.logp = elements_if(logps, logp, sequences, "logp");
  out.reference_logp = elements_if(reference, reference_logp, sequences, "reference_logp");
  out.length = elements_if(logps, length, sequences, "length");
  out.score = elements_if(desc.scores(), score, sequences * desc.num_scores, "score");
  out.first_token = elements_if(by_token, first_token, sequences + 1, "first_token");
  out.token_logp = elements_if(by_token, token_logp, tokens, "token_logp");
  out.reference_token_logp = elements_if(by_token && reference, reference_token_logp, tokens, "reference_token_logp");
  out.old_token_logp = elements_if(desc.needs_old_logps(), old_token_logp, tokens, "old_token_logp");
  const uint64_t entries = tokens * desc.top_k;
  out.teacher_count = elements_if(desc.needs_teacher(), teacher_count, tokens, "teacher_count");
  out.teacher_logp = elements_if(desc.needs_teacher(), teacher_logp, entries, "teacher_logp");
  out.top_logp = elements_if(desc.needs_teacher(), top_logp, entries, "top_logp");
  if (by_token)
    CHASSIS_CHECK(first_token.front() == 0 && first_token.back() == tokens,
                  fmt::format("the sequences of a batch of an objective have tokens {} to {}, expected 0 to {}",
                              first_token.front(), first_token.back(), tokens));
  if (!is_evaluated) return out;
  out.state = elements_if(desc.state_size > 0, state, desc.state_size, "state");
  out.sequence_state =
      elements_if(desc.state_per_sequence > 0, sequence_state, sequences * desc.state_per_sequence, "sequence_state");
  out.term_weight = elements_if(true, term_weight, desc.terms.size(), "term_weight");
  return out;
}

std::vector<double> counts_of(const ObjectiveDesc& desc, const ObjectiveBatch& batch) {
  double units = 0, sequences = 0, tokens = 0, chosen_tokens = 0, targets = 0;
  for (size_t i = 0; i < batch.role.size(); ++i) {
    if (i == 0 || batch.unit[i] != batch.unit[i - 1]) ++units;
    if (batch.role[i] == CHASSIS_SEQUENCE_MISMATCH) continue;
    ++sequences;
    if (!desc.scores()) tokens += batch.length[i];
    if (!desc.scores() && batch.role[i] == CHASSIS_SEQUENCE_CHOSEN) chosen_tokens += batch.length[i];
    for (size_t j = 0; j < desc.num_targets; ++j) targets += !std::isnan(batch.target[i * desc.num_targets + j]);
  }
  std::vector<double> counts;
  for (const ObjectiveTerm& term : desc.terms) {
    switch (term.count) {
      case CHASSIS_COUNT_UNITS:
        counts.push_back(units);
        break;
      case CHASSIS_COUNT_SEQUENCES:
        counts.push_back(sequences);
        break;
      case CHASSIS_COUNT_TOKENS:
        counts.push_back(tokens);
        break;
      case CHASSIS_COUNT_CHOSEN_TOKENS:
        counts.push_back(chosen_tokens);
        break;
      default:
        counts.push_back(targets);
    }
  }
  return counts;
}

ObjectiveResult::ObjectiveResult(const ObjectiveDesc& desc, const ObjectiveBatch& batch, bool with_gradients)
    : terms(desc.terms.size()), sums(desc.num_sums) {
  if (!with_gradients) return;
  if (desc.scores())
    grad_score.resize(batch.num_sequences() * desc.num_scores);
  else
    grad_logp.resize(batch.num_sequences());
  if (desc.needs_tokens()) grad_token_logp.resize(batch.num_tokens());
  grad_top_logp.resize(batch.num_tokens() * desc.top_k);
}

chassis_objective_result_t ObjectiveResult::view(const ObjectiveDesc& desc, bool with_gradients) {
  chassis_objective_result_t out{};
  out.struct_size = sizeof out;
  out.terms = elements_of(terms);
  out.sums = elements_of(sums);
  if (!with_gradients) return out;
  out.grad_logp = desc.scores() ? nullptr : elements_of(grad_logp);
  out.grad_score = desc.scores() ? elements_of(grad_score) : nullptr;
  out.grad_token_logp = desc.needs_tokens() ? elements_of(grad_token_logp) : nullptr;
  out.grad_top_logp = desc.needs_teacher() ? elements_of(grad_top_logp) : nullptr;
  return out;
}

ObjectivePlugin::ObjectivePlugin(const Instance& instance)
    : instance_(&instance), table_(instance.interface<chassis_objective_t>(CHASSIS_OBJECTIVE_ID)) {
  instance.require(CHASSIS_OBJECTIVE_ID,
                   {{"describe", table_.describe != nullptr}, {"evaluate", table_.evaluate != nullptr}});
  desc_ = describe();
}

Error ObjectivePlugin::refusal(const std::string& what) const { return plugin_error(label() + ": describe() " + what); }

ObjectiveDesc ObjectivePlugin::describe() const {
  chassis_objective_desc_t raw{};
  raw.struct_size = sizeof raw;
  instance_->call("describe", [&](auto* self) { return table_.describe(self, &raw); });
  ObjectiveDesc desc = checked(read_struct(&raw, label() + ": the description that describe() wrote"));
  check_values(desc);
  check_terms(desc);
  check_sizes(desc);
  return desc;
}

// Copies the names, and adds the needs that others imply.
ObjectiveDesc ObjectivePlugin::checked(const chassis_objective_desc_t& raw) const {
  ObjectiveDesc desc{.values = raw.values,
                     .units = raw.units,
                     .needs = raw.needs,
                     .num_scores = raw.num_scores,
                     .num_targets = raw.num_targets,
                     .num_classes = raw.num_classes,
                     .terms = {},
                     .metrics = {},
                     .num_sums = raw.num_sums,
                     .state_size = raw.state_size,
                     .state_per_sequence = raw.state_per_sequence,
                     .top_k = raw.top_k,
                     .temperature = raw.temperature};
  if ((desc.needs & CHASSIS_OBJECTIVE_MISMATCH) != 0) desc.needs |= CHASSIS_OBJECTIVE_GLOBAL;
  if ((desc.needs & CHASSIS_OBJECTIVE_STOPPED_RATIO) != 0) desc.needs |= CHASSIS_OBJECTIVE_OLD_LOGPS;
  if ((desc.needs & (CHASSIS_OBJECTIVE_OLD_LOGPS | CHASSIS_OBJECTIVE_TEACHER)) != 0)
    desc.needs |= CHASSIS_OBJECTIVE_TOKENS;
  if (raw.num_terms == 0) throw refusal("gives no term, expected at least 1: the loss is the sum of the terms");
  for (const auto& [what, count, is_null] : {std::tuple("terms", raw.num_terms, raw.terms == nullptr),
                                             std::tuple("metrics", raw.num_metrics, raw.metrics == nullptr)}) {
    if (count > kMaxNames) throw refusal(fmt::format("gives {} {}, at most {}", count, what, kMaxNames));
    if (count > 0 && is_null) throw refusal(fmt::format("gives {} {}, but their array is NULL", count, what));
  }
  std::unordered_set<std::string> terms, metrics;
  const auto name_of = [&](chassis_str_t text, std::string_view what, uint32_t i, auto& known) {
    if (text.ptr == nullptr || text.len == 0) throw refusal(fmt::format("gives {} {} no name", what, i));
    std::string name(view_of(text).substr(0, kMaxNameBytes + 1));
    if (name.size() > kMaxNameBytes)
      throw refusal(fmt::format("gives {} {} a name of {} bytes, at most {}", what, i, text.len, kMaxNameBytes));
    if (!is_plain_name(name))
      throw refusal(
          fmt::format("gives {} {} the name '{}', expected letters, digits and _ - . / @", what, i, printable(name)));
    if (!known.insert(name).second)
      throw refusal(fmt::format("gives {} {} the name '{}' of another {}", what, i, name, what));
    return name;
  };
  for (uint32_t i = 0; i < raw.num_terms; ++i)
    desc.terms.push_back({name_of(raw.terms[i].name, "term", i, terms), raw.terms[i].count});
  for (uint32_t i = 0; i < raw.num_metrics; ++i) {
    desc.metrics.push_back({name_of(raw.metrics[i].name, "metric", i, metrics), raw.metrics[i].better});
    if (const std::string& name = desc.metrics.back().name; is_name_of_records(name))
      throw refusal(fmt::format("gives metric {} the name '{}', which records of a run have themselves", i, name));
  }
  return desc;
}

void ObjectivePlugin::check_values(const ObjectiveDesc& desc) const {
  const bool pairs = desc.units == CHASSIS_OBJECTIVE_PAIRS, texts = desc.units == CHASSIS_OBJECTIVE_TEXTS,
             answers = desc.units == CHASSIS_OBJECTIVE_ANSWERS;
  if (desc.values != CHASSIS_OBJECTIVE_LOGPS && desc.values != CHASSIS_OBJECTIVE_SCORES)
    throw refusal(fmt::format("sets values to {}, expected 1 (LOGPS) or 2 (SCORES)", desc.values));
  if (desc.units < CHASSIS_OBJECTIVE_PAIRS || desc.units > CHASSIS_OBJECTIVE_ANSWERS)
    throw refusal(fmt::format(
        "sets units to {}, expected 1 (PAIRS), 2 (LABELLED), 3 (TEXTS), 4 (ROLLOUTS) or 5 (ANSWERS)", desc.units));
  if (const uint32_t unknown = desc.needs & ~kKnownNeeds; unknown != 0)
    throw refusal(fmt::format("sets the needs {}, which this host does not know", unknown));
  if (desc.scores()) {
    if (desc.num_scores == 0 || desc.num_scores > kMaxSize)
      throw refusal(fmt::format("sets num_scores to {} with SCORES, expected 1 to {}", desc.num_scores, kMaxSize));
    for (const auto& [flag, name] :
         {std::pair(CHASSIS_OBJECTIVE_REFERENCE, "REFERENCE"), std::pair(CHASSIS_OBJECTIVE_OLD_LOGPS, "OLD_LOGPS"),
          std::pair(CHASSIS_OBJECTIVE_TEACHER, "TEACHER"), std::pair(CHASSIS_OBJECTIVE_TOKENS, "TOKENS")})
      if ((desc.needs & flag) != 0)
        throw refusal(fmt::format("asks for {} with SCORES, but only LOGPS have log-probabilities", name));
  } else if (desc.num_scores != 0) {
    throw refusal(fmt::format("sets num_scores to {} with LOGPS, expected 0", desc.num_scores));
  }
  if (desc.needs_mismatches() && desc.units != CHASSIS_OBJECTIVE_LABELLED)
    throw refusal(
        fmt::format("asks for MISMATCH with units {}, expected {} (LABELLED)", desc.units, CHASSIS_OBJECTIVE_LABELLED));
  if (desc.needs_old_logps() && desc.units != CHASSIS_OBJECTIVE_ROLLOUTS)
    throw refusal(fmt::format("asks for OLD_LOGPS with units {}, expected {} (ROLLOUTS)", desc.units,
                              CHASSIS_OBJECTIVE_ROLLOUTS));
  if (desc.needs_margins() && !pairs)
    throw refusal(
        fmt::format("asks for MARGINS with units {}, expected {} (PAIRS)", desc.units, CHASSIS_OBJECTIVE_PAIRS));
  if (answers && !desc.needs_teacher()) throw refusal("sets units to 5 (ANSWERS) without TEACHER");
  if (desc.needs_teacher() && !answers)
    throw refusal(
        fmt::format("asks for TEACHER with units {}, expected {} (ANSWERS)", desc.units, CHASSIS_OBJECTIVE_ANSWERS));
  if (desc.needs_teacher() ? desc.top_k == 0 || desc.top_k > kMaxTopK : desc.top_k != 0)
    throw refusal(fmt::format(
        "sets top_k to {}, expected {}", desc.top_k,
        desc.needs_teacher() ? fmt::format("1 to {} with TEACHER", kMaxTopK) : std::string("0 without TEACHER")));
  if (desc.needs_teacher() ? !(desc.temperature > 0) || !std::isfinite(desc.temperature) : desc.temperature != 0)
    throw refusal(fmt::format("sets temperature to {}, expected {}", desc.temperature,
                              desc.needs_teacher() ? "a number above 0 with TEACHER" : "0 without TEACHER"));
  if (texts ? desc.num_targets == 0 || desc.num_targets > kMaxSize : desc.num_targets != (pairs || answers ? 0 : 1))
    throw refusal(fmt::format("sets num_targets to {}, expected {}", desc.num_targets,
                              pairs || answers ? std::string("0 with PAIRS and ANSWERS")
                              : texts          ? fmt::format("1 to {} with TEXTS", kMaxSize)
                                               : std::string("1 with LABELLED and ROLLOUTS")));
  if (desc.num_classes > (texts ? kMaxSize : 0))
    throw refusal(fmt::format("sets num_classes to {}, expected at most {}{}", desc.num_classes, texts ? kMaxSize : 0,
                              texts ? "" : ": only TEXTS have classes"));
}

void ObjectivePlugin::check_terms(const ObjectiveDesc& desc) const {
  for (const ObjectiveTerm& term : desc.terms) {
    if (term.count < CHASSIS_COUNT_UNITS || term.count > CHASSIS_COUNT_TARGETS)
      throw refusal(
          fmt::format("divides term '{}' by count {}, expected 1 to {}", term.name, term.count, CHASSIS_COUNT_TARGETS));
    const bool by_tokens = term.count == CHASSIS_COUNT_TOKENS || term.count == CHASSIS_COUNT_CHOSEN_TOKENS;
    if (by_tokens && desc.scores())
      throw refusal(
          fmt::format("divides term '{}' by a number of tokens, but with SCORES sequences have no answer", term.name));
    if (term.count == CHASSIS_COUNT_CHOSEN_TOKENS && desc.units != CHASSIS_OBJECTIVE_PAIRS)
      throw refusal(fmt::format("divides term '{}' by CHOSEN_TOKENS with units {}, expected {} (PAIRS)", term.name,
                                desc.units, CHASSIS_OBJECTIVE_PAIRS));
    if (term.count == CHASSIS_COUNT_TARGETS && desc.num_targets == 0)
      throw refusal(fmt::format("divides term '{}' by TARGETS, but {} have no targets", term.name,
                                desc.units == CHASSIS_OBJECTIVE_PAIRS ? "PAIRS" : "ANSWERS"));
  }
  for (const ObjectiveMetric& metric : desc.metrics)
    if (metric.better > CHASSIS_BETTER_LOWER)
      throw refusal(fmt::format("sets better of metric '{}' to {}, expected 0 (neither), 1 (higher) or 2 (lower)",
                                metric.name, metric.better));
}

void ObjectivePlugin::check_sizes(const ObjectiveDesc& desc) const {
  for (const auto& [name, size] : {std::pair("num_sums", desc.num_sums), std::pair("state_size", desc.state_size),
                                   std::pair("state_per_sequence", desc.state_per_sequence)})
    if (size > kMaxSize) throw refusal(fmt::format("sets {} to {}, at most {}", name, size, kMaxSize));
  if (table_.metrics == nullptr && desc.num_sums != 2 * desc.metrics.size())
    throw refusal(
        fmt::format("sets num_sums to {}, but without the function metrics each of the {} metrics needs 2 "
                    "sums, expected {}",
                    desc.num_sums, desc.metrics.size(), 2 * desc.metrics.size()));
  if (desc.needs_global() && table_.prepare == nullptr)
    throw refusal("asks for GLOBAL, but the plugin has no function prepare");
  if (!desc.needs_global() && desc.state_size + desc.state_per_sequence > 0)
    throw refusal(fmt::format("sets state_size to {} and state_per_sequence to {} without GLOBAL, expected 0",
                              desc.state_size, desc.state_per_sequence));
}

void ObjectivePlugin::prepare(const ObjectiveBatch& global, std::vector<double>& state,
                              std::vector<double>& sequence_state) const {
  CHASSIS_CHECK(desc_.needs_global(), "the objective has no prepare");
  const chassis_objective_batch_t view = global.view(desc_, false);
  state.assign(desc_.state_size, 0.0);
  sequence_state.assign(global.num_sequences() * desc_.state_per_sequence, 0.0);
  instance_->call("prepare", [&](auto* self) {
    return table_.prepare(self, &view, elements_of(state), elements_of(sequence_state));
  });
  if (const size_t i = find_not(state, is_finite); i < state.size())
    throw plugin_error(
        fmt::format("{}: prepare() gives {} for state[{}], expected a finite number", label(), state[i], i));
  if (const size_t i = find_not(sequence_state, is_finite); i < sequence_state.size())
    throw plugin_error(fmt::format("{}: prepare() gives {} for sequence_state[{}] ({}), expected a finite number",
                                   label(), sequence_state[i], i, sequence_text(global, i / desc_.state_per_sequence)));
}

ObjectiveResult ObjectivePlugin::evaluate(const ObjectiveBatch& batch, bool with_gradients) const {
  const chassis_objective_batch_t view = batch.view(desc_, true);
  ObjectiveResult result(desc_, batch, with_gradients);
  const chassis_objective_result_t out = result.view(desc_, with_gradients);
  instance_->call("evaluate", [&](auto* self) { return table_.evaluate(self, &view, &out); });

  const auto wrong = [&](std::string_view array, size_t i, double value, const std::string& where,
                         std::string_view expected) {
    return plugin_error(fmt::format("{}: evaluate() gives {} for {}[{}]{}, expected {}", label(), value, array, i,
                                    where.empty() ? "" : " (" + where + ")", expected));
  };
  if (const size_t i = find_not(result.terms, is_finite); i < result.terms.size())
    throw wrong("terms", i, result.terms[i], "'" + desc_.terms[i].name + "'", "a finite number");
  if (const size_t i = find_not(result.sums, is_finite); i < result.sums.size())
    throw wrong("sums", i, result.sums[i], "", "a finite number");
  const auto check_gradients = [&](std::string_view name, const std::vector<double>& array, auto&& sequence_of) {
    for (size_t i = 0; i < array.size(); ++i) {
      const bool is_mismatch = desc_.needs_mismatches() && batch.role[sequence_of(i)] == CHASSIS_SEQUENCE_MISMATCH;
      if (std::isfinite(array[i]) && !(is_mismatch && array[i] != 0)) continue;
      throw wrong(name, i, array[i], sequence_text(batch, sequence_of(i)), is_mismatch ? "0" : "a finite number");
    }
  };
  check_gradients("grad_logp", result.grad_logp, [](size_t i) { return i; });
  check_gradients("grad_score", result.grad_score, [&](size_t i) { return i / desc_.num_scores; });
  check_gradients("grad_token_logp", result.grad_token_logp, [&](size_t i) { return sequence_of_token(batch, i); });
  check_gradients("grad_top_logp", result.grad_top_logp,
                  [&](size_t i) { return sequence_of_token(batch, i / desc_.top_k); });
  return result;
}

std::vector<double> ObjectivePlugin::metrics(const std::vector<double>& sums) const {
  CHASSIS_CHECK(sums.size() == desc_.num_sums,
                fmt::format("an objective of {} sums is given {}", desc_.num_sums, sums.size()));
  std::vector<double> out(desc_.metrics.size());
  if (table_.metrics == nullptr) {
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = sums[2 * i + 1] == 0 ? std::numeric_limits<double>::quiet_NaN() : sums[2 * i] / sums[2 * i + 1];
  } else {
    instance_->call("metrics", [&](auto* self) { return table_.metrics(self, elements_of(sums), elements_of(out)); });
  }
  if (const size_t i = find_not(out, is_not_infinite); i < out.size())
    throw plugin_error(
        fmt::format("{}: metrics() gives {} for '{}', expected a finite number, or NaN if it is not known", label(),
                    out[i], desc_.metrics[i].name));
  return out;
}

}  // namespace chassis
