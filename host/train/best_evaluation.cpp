// Compares results, and counts those that are no improvement.
#include "host/train/best_evaluation.hpp"

#include <fmt/format.h>

#include <cmath>

#include "host/base/log.hpp"

namespace chassis {
namespace {

// Keys of the saved state that hold the number of evaluations without an improvement, and the best value.
const char* count_key(const Measure& measure) { return measure.higher_is_better ? "num_not_higher" : "num_not_lower"; }
const char* best_word(const Measure& measure) { return measure.higher_is_better ? "highest" : "lowest"; }

// The number that a set gives unless the state names another.
const char* default_name(bool higher_is_better) { return higher_is_better ? "score" : "loss"; }

Measure measure_of(const Json& saved, const std::string& where) {
  const bool higher = saved.contains("num_not_higher");
  return {json_string_or(saved, "measure", default_name(higher), where), higher};
}

}  // namespace

bool BestEvaluation::add(int64_t step, double value) {
  const bool is_better = step_ < 0 || (measure_.higher_is_better ? value > value_ : value < value_);
  if (std::isnan(value) || !is_better) {
    ++num_not_better_;
    return false;
  }
  step_ = step;
  value_ = value;
  num_not_better_ = 0;
  return true;
}

std::string BestEvaluation::text() const {
  return fmt::format("{} {:.6g} on \"{}\" at step {}", measure_.name, value_, set_, step_);
}

std::string BestEvaluation::end_text() const {
  return fmt::format("stopped early: {} evaluations in a row were not better than {} (eval.patience = {})",
                     num_not_better_, step_ < 0 ? "any before" : text(), patience_);
}

Json BestEvaluation::to_json() const {
  Json json = {{"set", set_}, {count_key(measure_), num_not_better_}};
  if (measure_.name != default_name(measure_.higher_is_better)) json["measure"] = measure_.name;
  if (step_ < 0) return json;
  json["step"] = step_;
  json[measure_.name] = std::isfinite(value_) ? Json(value_) : Json();
  return json;
}

void BestEvaluation::restore(const Json& saved, const std::string& where) {
  const std::string set = json_string(saved, "set", where);
  const Measure before = measure_of(saved, where);
  if (set != set_ || before != measure_)
    return counted_warning(
        "best evaluation forgotten",
        fmt::format(
            "{} has the {} {} of evaluation set \"{}\", and eval.keep_best is \"{}\", whose {} decides: the next "
            "evaluation counts as the best",
            where, best_word(before), before.name, set, set_, measure_.name));
  num_not_better_ = json_int(saved, count_key(measure_), where);
  step_ = json_int_or(saved, "step", -1, where);
  value_ = json_number_or(saved, measure_.name, measure_.higher_is_better ? -HUGE_VAL : HUGE_VAL, where);
}

}  // namespace chassis
