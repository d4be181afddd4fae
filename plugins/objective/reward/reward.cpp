// Reward models: the score of the chosen answer above that of the rejected one (Bradley and Terry 1952).
#include "chassis/log_sigmoid.hpp"
#include "chassis/objective.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

enum Term : size_t { kPreference, kCenter };
enum Metric : size_t { kAccuracy, kMargin, kMeanReward };

class Reward final : public Objective {
 public:
  static constexpr std::string_view kDoc =
      "reward models: scores that prefer chosen answers by the margins of the data";

  static const Options& options() {
    static const Options schema = {
        option("center_coefficient", 0.0)
            .range(0, 1e6)
            .doc("weight of the squared sum of the two scores of a pair, which keeps scores near 0 (try 0.01)"),
    };
    return schema;
  }

  explicit Reward(const Host& host) : Objective(host), center_(option_value<double>(host, "center_coefficient")) {}

  ObjectiveDescription describe() const override {
    ObjectiveDescription d;
    d.values = CHASSIS_OBJECTIVE_SCORES;
    d.needs = CHASSIS_OBJECTIVE_MARGINS;
    d.num_scores = 1;
    d.terms = {{"preference", CHASSIS_COUNT_UNITS}};
    if (center_ > 0) d.terms.push_back({"center", CHASSIS_COUNT_UNITS});
    d.metrics = {{"accuracy", CHASSIS_BETTER_HIGHER}, {"margin", CHASSIS_BETTER_HIGHER}, {"mean_reward"}};
    return d;
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    batch.for_each_pair([&](size_t w, size_t l) {
      const double chosen = batch.score(w)[0], rejected = batch.score(l)[0];
      const double x = chosen - rejected - batch.margin()[w];
      out.add_term(kPreference, softplus(-x));
      out.add_grad_score(kPreference, w, 0, -sigmoid(-x));
      out.add_grad_score(kPreference, l, 0, sigmoid(-x));
      if (center_ > 0) {
        const double sum = chosen + rejected;
        out.add_term(kCenter, center_ * sum * sum);
        for (const size_t i : {w, l}) out.add_grad_score(kCenter, i, 0, 2 * center_ * sum);
      }
      out.add_metric(kAccuracy, chosen > rejected);
      out.add_metric(kMargin, chosen - rejected);
      out.add_metric(kMeanReward, chosen + rejected, 2);
    });
  }

 private:
  double center_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Reward)
