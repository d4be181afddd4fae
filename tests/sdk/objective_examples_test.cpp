// The example objectives in C, C++ and Rust keep the contract and give the same numbers.
#include <gtest/gtest.h>

#include <cmath>

#include "host/base/file.hpp"
#include "host/conformance/objective_checks.hpp"
#include "host/conformance/objective_numbers.hpp"
#include "host/plugin/option_schema.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

class ObjectiveExamples : public testing::Test {
 protected:
  // Without cargo there is no example in Rust.
  std::vector<std::string> ids() const {
    std::vector<std::string> found = {"objective_c", "objective_cpp"};
    if (path_kind(CHASSIS_TEST_BINARY_DIR "/tests/sdk/plugins/objective_rust.so") == PathKind::kFile)
      found.push_back("objective_rust");
    return found;
  }
  std::unique_ptr<Instance> make(const std::string& id, const Json& changes = Json::object()) {
    Json options{{"margin", 1.0}, {"beta", 2.0}};
    options.update(changes);
    return plugins_.make("objective", id, options);
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_BINARY_DIR "/tests/sdk/plugins"}};
};

TEST_F(ObjectiveExamples, PassTheConformanceTests) {
  for (const std::string& id : ids()) {
    const std::unique_ptr<Instance> instance = make(id);
    const std::vector<OptionSpec> specs =
        read_option_specs(instance->library().member("objective", id), instance->label());
    const ObjectiveReport report =
        examine_objective({*instance, specs, [&](const Json& changes) { return make(id, changes); }});
    EXPECT_EQ(report.failures, std::vector<std::string>()) << id;
    EXPECT_EQ(report.left_out, "") << id;
  }
}

TEST_F(ObjectiveExamples, GiveTheSameNumbers) {
  for (const Json& changes : {Json::object(), Json{{"margin", 0.25}, {"beta", 0.5}}}) {
    const std::unique_ptr<Instance> in_cpp = make("objective_cpp", changes);
    const ObjectiveNumbers expected = objective_numbers(ObjectivePlugin(*in_cpp));
    for (const std::string& id : ids()) {
      const std::unique_ptr<Instance> instance = make(id, changes);
      const ObjectiveNumbers numbers = objective_numbers(ObjectivePlugin(*instance));
      EXPECT_EQ(numbers.desc, expected.desc) << id;
      ASSERT_EQ(numbers.numbers.size(), expected.numbers.size()) << id;
      for (size_t i = 0; i < numbers.numbers.size(); ++i)
        EXPECT_NEAR(numbers.numbers[i], expected.numbers[i], 1e-12 * (1 + std::abs(expected.numbers[i]))) << id << i;
    }
  }
}

// Two pairs with differences of 1 and -1 between mean log-probabilities, multiplied by 2.
TEST_F(ObjectiveExamples, AddTheMarginOfThePairToThatOfTheOption) {
  ObjectiveBatch batch;
  batch.role = {CHASSIS_SEQUENCE_CHOSEN, CHASSIS_SEQUENCE_REJECTED, CHASSIS_SEQUENCE_CHOSEN, CHASSIS_SEQUENCE_REJECTED};
  batch.unit = {0, 0, 1, 1};
  batch.margin = {1.5, 1.5, 0, 0};
  batch.logp = {-2, -2, -6, -4};
  batch.length = {2, 1, 2, 2};
  batch.term_weight = {0.5};
  for (const std::string& id : ids()) {
    const std::unique_ptr<Instance> instance = make(id);
    const ObjectivePlugin plugin(*instance);
    const ObjectiveResult result = plugin.evaluate(batch, true);
    EXPECT_EQ(result.terms, (std::vector<double>{0.5 + 3})) << id;
    EXPECT_EQ(result.grad_logp, (std::vector<double>{-0.5, 1, -0.5, 0.5})) << id;
    EXPECT_EQ(plugin.metrics(result.sums), (std::vector<double>{0.5, 0})) << id;
  }
}

}  // namespace
}  // namespace chassis
