// Compares results, and counts those that are no improvement.
#include "host/train/best_evaluation.hpp"

#include <fmt/format.h>

#include <cmath>

#include "host/base/log.hpp"

namespace chassis {
namespace {

struct MeasureNames {
  const char* value;  // in texts, and a key of the saved state
  const char* count;  // the key of the number of evaluations without an improvement
  const char* best;
};

MeasureNames names_of(Measure measure) {
  if (measure == Measure::kScore) return {"score", "num_not_higher", "highest"};
  return {"loss", "num_not_lower", "lowest"};
}

Measure measure_of(const Json& saved) {
  return saved.contains(names_of(Measure::kScore).count) ? Measure::kScore : Measure::kLoss;
}

}  // namespace

bool BestEvaluation::add(int64_t step, double value) {
  const bool is_better = step_ < 0 || (measure_ == Measure::kLoss ? value < value_ : value > value_);
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
  return fmt::format("{} {:.6g} on \"{}\" at step {}", names_of(measure_).value, value_, set_, step_);
}

std::string BestEvaluation::end_text() const {
  return fmt::format("stopped early: {} evaluations in a row were not better than {} (eval.patience = {})",
                     num_not_better_, step_ < 0 ? "any before" : text(), patience_);
}

Json BestEvaluation::to_json() const {
  const MeasureNames names = names_of(measure_);
  Json json = {{"set", set_}, {names.count, num_not_better_}};
  if (step_ < 0) return json;
  json["step"] = step_;
  json[names.value] = std::isfinite(value_) ? Json(value_) : Json();
  return json;
}

void BestEvaluation::restore(const Json& saved, const std::string& where) {
  const std::string set = json_string(saved, "set", where);
  const MeasureNames names = names_of(measure_), before = names_of(measure_of(saved));
  if (set != set_ || measure_of(saved) != measure_)
    return counted_warning(
        "best evaluation forgotten",
        fmt::format(
            "{} has the {} {} of evaluation set \"{}\", and eval.keep_best is \"{}\", whose {} decides: the next "
            "evaluation counts as the best",
            where, before.best, before.value, set, set_, names.value));
  num_not_better_ = json_int(saved, names.count, where);
  step_ = json_int_or(saved, "step", -1, where);
  value_ = json_number_or(saved, names.value, measure_ == Measure::kLoss ? HUGE_VAL : -HUGE_VAL, where);
}

}  // namespace chassis
