// A hinge on the difference of the mean log-probabilities of two answers: max(0, margin - β (chosen - rejected)). The
// margin of a pair, if the data have one, is added to that of the option.
#include "chassis/objective.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Hinge final : public Objective {
 public:
  static constexpr std::string_view kId = "objective_cpp";
  static constexpr std::string_view kDoc = "a hinge on the difference of mean log-probabilities";

  static const Options& options() {
    static const Options schema = {
        option("margin", 1.0).range(0, 100).doc("difference at which the loss is 0"),
        option("beta", 2.0).range(0.001, 1000).doc("factor of the difference"),
    };
    return schema;
  }

  explicit Hinge(const Host& host)
      : Objective(host), margin_(option_value<double>(host, "margin")), beta_(option_value<double>(host, "beta")) {}

  ObjectiveDescription describe() const override {
    return {.needs = CHASSIS_OBJECTIVE_MARGINS,
            .terms = {{"hinge", CHASSIS_COUNT_UNITS}},
            .metrics = {{"rewards/accuracies", CHASSIS_BETTER_HIGHER}, {"rewards/margins", CHASSIS_BETTER_HIGHER}}};
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    batch.for_each_pair([&](size_t chosen, size_t rejected) {
      const auto reward = [&](size_t i) { return beta_ * batch.logp()[i] / batch.length()[i]; };
      const double difference = reward(chosen) - reward(rejected);
      const double loss = margin_ + batch.margin()[chosen] - difference;
      if (loss > 0) {
        out.add_term(0, loss);
        out.add_grad_logp(0, chosen, -beta_ / batch.length()[chosen]);
        out.add_grad_logp(0, rejected, beta_ / batch.length()[rejected]);
      }
      out.add_metric(0, difference > 0);
      out.add_metric(1, difference);
    });
  }

 private:
  double margin_, beta_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", Hinge)
