// Every objective with every option: gradients are the differences of its values, sums are additive, values finite.
#include <gtest/gtest.h>

#include "tests/plugins/objective/cases.hpp"
#include "tests/support/objective_run.hpp"

namespace {

using fake::ObjectiveData;
using fake::ObjectiveRun;
using fake::ObjectiveSums;
using objective_cases::Case;

class Objectives : public testing::TestWithParam<Case> {
 protected:
  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/" + GetParam().plugin + ".so"};
  ObjectiveRun run_{host_, plugin_, GetParam().plugin, GetParam().options};

  // The derivative of `loss` with respect to one value, by a stencil of fourth order. `other`: moves with it, if not
  // NULL.
  template <typename Loss>
  static double difference(double& value, double* other, const Loss& loss) {
    constexpr double kStep = 1e-4;
    const double middle = value, middle_of_other = other == nullptr ? 0 : *other;
    const auto at = [&](double steps) {
      value = middle + steps * kStep;
      if (other != nullptr) *other = middle_of_other + steps * kStep;
      const double found = loss();
      value = middle;
      if (other != nullptr) *other = middle_of_other;
      return found;
    };
    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * kStep);
  }

  // All gradients of a batch against differences of `loss`.
  template <typename Loss>
  void expect_gradients(ObjectiveData& data, const ObjectiveSums& found, const Loss& loss) {
    size_t num_compared = 0;
    const auto compare = [&](std::vector<double>& values, const std::vector<double>& gradients, const char* name) {
      ASSERT_EQ(values.size(), gradients.size());
      for (size_t i = 0; i < values.size(); ++i, ++num_compared) {
        const bool is_stopped = run_.needs(CHASSIS_OBJECTIVE_STOPPED_RATIO) && &values == &data.token_logp;
        const double wanted = difference(values[i], is_stopped ? &data.old_token_logp[i] : nullptr, loss);
        EXPECT_NEAR(gradients[i], wanted, 1e-6 * std::abs(wanted) + 1e-9) << name << " " << i;
      }
    };
    compare(data.logp, found.grad_logp, "logp");
    compare(data.score, found.grad_score, "score");
    compare(data.token_logp, found.grad_token_logp, "token_logp");
    compare(data.top_logp, found.grad_top_logp, "top_logp");
    EXPECT_GT(num_compared, 0u);
  }
};

TEST_P(Objectives, HaveTheGradientsOfTheirValues) {
  for (const unsigned seed : {2u, 4u, 5u}) {  // no value is within a step of a kink
    ObjectiveData data = run_.random_batch(6, seed);
    run_.prepare(data);
    const auto weights = run_.weights(data);
    const ObjectiveSums found = run_.evaluate(data, weights);
    expect_gradients(data, found, [&] { return ObjectiveRun::loss(run_.evaluate(data, weights, false), weights); });
    const auto& gradients = run_.desc.values == CHASSIS_OBJECTIVE_SCORES ? found.grad_score : found.grad_logp;
    EXPECT_TRUE(run_.has_tokens() ||
                std::any_of(gradients.begin(), gradients.end(), [](double g) { return std::abs(g) > 1e-6; }));
  }
}

// Sorted matches move with the values, so the gradient is that of the whole: prepare, then evaluate. A baseline or a
// standard deviation has no gradient.
TEST_P(Objectives, HaveTheGradientsOfPreparedValuesToo) {
  if (run_.desc.state_per_sequence == 0) return;
  ObjectiveData data = run_.random_batch(6, 4);
  run_.prepare(data);
  const auto weights = run_.weights(data);
  const ObjectiveSums found = run_.evaluate(data, weights);
  expect_gradients(data, found, [&] {
    ObjectiveData again = data;
    run_.prepare(again);
    return ObjectiveRun::loss(run_.evaluate(again, weights, false), weights);
  });
}

TEST_P(Objectives, AddUpOverAnyDivisionAndOrderOfUnits) {
  ObjectiveData data = run_.random_batch(7, 5);
  run_.prepare(data);
  const auto weights = run_.weights(data);
  const ObjectiveSums whole = run_.evaluate(data, weights);
  auto units = data.units();
  std::reverse(units.begin(), units.end());
  ObjectiveSums total = whole;
  for (auto* list : {&total.terms, &total.sums}) std::fill(list->begin(), list->end(), 0);
  for (size_t first = 0, size = 1; first < units.size(); first += size++) {  // 1, 2, 3 and 1 units
    std::vector<size_t> sequences;
    for (size_t u = first; u < std::min(first + size, units.size()); ++u)
      sequences.insert(sequences.end(), units[u].begin(), units[u].end());
    const ObjectiveSums part = run_.evaluate(data.part(sequences), weights);
    for (size_t i = 0; i < part.terms.size(); ++i) total.terms[i] += part.terms[i];
    for (size_t i = 0; i < part.sums.size(); ++i) total.sums[i] += part.sums[i];
    size_t token = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const size_t i = sequences[s];
      if (!part.grad_logp.empty()) {
        EXPECT_DOUBLE_EQ(part.grad_logp[s], whole.grad_logp[i]);
      }
      for (size_t k = 0; k < run_.desc.num_scores; ++k)
        EXPECT_DOUBLE_EQ(part.grad_score[s * run_.desc.num_scores + k], whole.grad_score[i * run_.desc.num_scores + k]);
      if (part.grad_token_logp.empty()) continue;
      for (size_t t = data.first_token[i]; t < data.first_token[i + 1]; ++t, ++token) {
        EXPECT_DOUBLE_EQ(part.grad_token_logp[token], whole.grad_token_logp[t]);
        for (size_t k = 0; k < run_.desc.top_k; ++k)
          EXPECT_DOUBLE_EQ(part.grad_top_logp[token * run_.desc.top_k + k],
                           whole.grad_top_logp[t * run_.desc.top_k + k]);
      }
    }
  }
  for (size_t i = 0; i < total.terms.size(); ++i)
    EXPECT_NEAR(total.terms[i], whole.terms[i], 1e-12 * (1 + std::abs(whole.terms[i])));
  for (size_t i = 0; i < total.sums.size(); ++i)
    EXPECT_NEAR(total.sums[i], whole.sums[i], 1e-12 * (1 + std::abs(whole.sums[i])));
}

TEST_P(Objectives, PrepareTheSameForAnyOrderOfUnits) {
  ObjectiveData data = run_.random_batch(7, 6);
  run_.prepare(data);
  auto units = data.units();
  std::reverse(units.begin(), units.end());
  std::vector<size_t> order;
  for (const auto& unit : units) order.insert(order.end(), unit.begin(), unit.end());
  const ObjectiveData expected = data.part(order);
  ObjectiveData found = expected;
  run_.prepare(found);
  for (size_t i = 0; i < found.state.size(); ++i) EXPECT_NEAR(found.state[i], expected.state[i], 1e-12);
  EXPECT_EQ(found.sequence_state, expected.sequence_state);
}

TEST_P(Objectives, AreFiniteForLargeValues) {
  for (int pattern = 0; pattern < 16; ++pattern) {
    ObjectiveData data = run_.random_batch(4, 7);
    const auto large = [&](size_t i, int bit) {
      return ((pattern >> bit) + static_cast<int>(i)) % 2 == 0 ? 1e4 : -1e4;
    };
    for (size_t i = 0; i < data.logp.size(); ++i) data.logp[i] = large(pattern & 4 ? i : i / 2, 0);
    for (size_t i = 0; i < data.reference_logp.size(); ++i) data.reference_logp[i] = large(pattern & 8 ? i : i / 2, 1);
    for (size_t i = 0; i < data.score.size(); ++i) data.score[i] = large(pattern & 4 ? i : i / 2, 0);
    for (size_t i = 0; i < data.token_logp.size(); ++i) data.token_logp[i] = large(pattern & 4 ? i : i / 2, 0);
    for (size_t i = 0; i < data.reference_token_logp.size(); ++i) data.reference_token_logp[i] = large(i, 1);
    for (size_t i = 0; i < data.old_token_logp.size(); ++i) data.old_token_logp[i] = large(i, 1);
    for (size_t i = 0; i < data.teacher_logp.size(); ++i) data.teacher_logp[i] = large(i, 1) - 1e4;
    for (size_t i = 0; i < data.top_logp.size(); ++i) data.top_logp[i] = large(pattern & 4 ? i : i / 2, 0);
    run_.prepare(data);
    const ObjectiveSums found = run_.evaluate(data, run_.weights(data));
    for (const double value : found.all()) EXPECT_TRUE(std::isfinite(value)) << "pattern " << pattern;
    for (const auto& [name, value] : run_.metrics(found.sums)) EXPECT_FALSE(std::isinf(value)) << name;
  }
}

TEST_P(Objectives, AddNothingForAnEmptyBatch) {
  ObjectiveData data;
  run_.prepare(data);
  const ObjectiveSums found = run_.evaluate(data, std::vector<double>(run_.desc.num_terms, 1));
  for (const double value : found.all()) EXPECT_EQ(value, 0);
  for (const auto& [name, value] : run_.metrics(found.sums)) EXPECT_TRUE(std::isnan(value)) << name;
}

TEST_P(Objectives, HaveTheSameValuesWithoutGradients) {
  ObjectiveData data = run_.random_batch(5, 8);
  run_.prepare(data);
  const auto weights = run_.weights(data);
  const ObjectiveSums with = run_.evaluate(data, weights), without = run_.evaluate(data, weights, false);
  EXPECT_EQ(with.terms, without.terms);
  EXPECT_EQ(with.sums, without.sums);
}

TEST_P(Objectives, LeaveMismatchesWithoutGradient) {
  ObjectiveData data = run_.random_batch(5, 9);
  run_.prepare(data);
  const ObjectiveSums found = run_.evaluate(data, run_.weights(data));
  for (size_t i = 0; i < found.grad_logp.size(); ++i) {
    if (data.role[i] == CHASSIS_SEQUENCE_MISMATCH) {
      EXPECT_EQ(found.grad_logp[i], 0);
    }
  }
}

// Every option in a case differs from its default, and the objective without it gives other values.
TEST_P(Objectives, ReadEveryOption) {
  for (const auto& [name, json] : GetParam().options) {
    if (json == "\"bnpo\"") continue;  // with counts of the global batch it is dapo
    auto options = GetParam().options;
    options.erase(name);
    fake::Host host;
    std::unique_ptr<ObjectiveRun> other;
    try {
      other = std::make_unique<ObjectiveRun>(host, plugin_, GetParam().plugin, options);
    } catch (const std::exception&) {
      continue;  // it is required, or another option needs it
    }
    const auto values = [](const ObjectiveRun& run) {
      ObjectiveData own = run.random_batch(6, 10);
      run.prepare(own);
      const auto weights = run.weights(own);
      const ObjectiveSums found = run.evaluate(own, weights);
      std::vector<double> out = found.all();
      out.push_back(ObjectiveRun::loss(found, weights));
      return out;
    };
    EXPECT_NE(values(run_), values(*other)) << name << " = " << json;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Objectives, testing::ValuesIn(objective_cases::all()));

}  // namespace
