// Compares losses, and counts those that are not lower.
#include "host/train/best_loss.hpp"

#include <fmt/format.h>

#include <cmath>

#include "host/base/log.hpp"

namespace chassis {

bool BestLoss::add(int64_t step, double loss) {
  if (std::isnan(loss) || (step_ >= 0 && loss >= loss_)) {
    ++num_not_lower_;
    return false;
  }
  step_ = step;
  loss_ = loss;
  num_not_lower_ = 0;
  return true;
}

std::string BestLoss::text() const { return fmt::format("loss {:.6g} on \"{}\" at step {}", loss_, set_, step_); }

std::string BestLoss::end_text() const {
  return fmt::format("stopped early: {} evaluations in a row were not better than {} (eval.patience = {})",
                     num_not_lower_, step_ < 0 ? "any before" : text(), patience_);
}

Json BestLoss::to_json() const {
  Json json = {{"set", set_}, {"num_not_lower", num_not_lower_}};
  if (step_ < 0) return json;
  json["step"] = step_;
  json["loss"] = std::isfinite(loss_) ? Json(loss_) : Json();
  return json;
}

void BestLoss::restore(const Json& saved, const std::string& where) {
  if (const std::string set = json_string(saved, "set", where); set != set_)
    return counted_warning("best loss forgotten",
                           fmt::format("{} has the lowest loss of evaluation set \"{}\", and "
                                       "eval.keep_best is \"{}\": the next evaluation counts as the best",
                                       where, set, set_));
  num_not_lower_ = json_int(saved, "num_not_lower", where);
  step_ = json_int_or(saved, "step", -1, where);
  loss_ = json_number_or(saved, "loss", HUGE_VAL, where);
}

}  // namespace chassis
