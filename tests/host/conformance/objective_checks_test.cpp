// The conformance tests of objectives find each fault of a nonconforming one, with the options that show it.
#include "host/conformance/objective_checks.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "host/base/error.hpp"
#include "host/conformance/objective_samples.hpp"
#include "host/plugin/option_schema.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

class ObjectiveConformance : public testing::Test {
 protected:
  ~ObjectiveConformance() override { ::unsetenv("NONCONFORMING"); }

  std::string failures(const std::string& fault, const std::string& id = "nonconforming_objective") {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    const std::unique_ptr<Instance> instance = plugins_.make("objective", id);
    const std::vector<OptionSpec> specs =
        read_option_specs(instance->library().member("objective", id), instance->label());
    const Json defaults = default_options(specs, id);
    const auto another = [&](const Json& changes) -> std::unique_ptr<Instance> {
      Json options = defaults;
      options.update(changes);
      try {
        return plugins_.make("objective", id, options);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kConfig) throw;
        return nullptr;
      }
    };
    const ObjectiveReport report = examine_objective({*instance, specs, another});
    left_out_ = report.left_out;
    std::string text;
    for (const std::string& line : report.failures) text += line + "\n";
    return text;
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
  std::string left_out_;
};

// The margin has an effect only together with the hinge.
TEST_F(ObjectiveConformance, FindsNothingWhereNothingIsWrong) {
  EXPECT_EQ(failures(""), "");
  EXPECT_EQ(left_out_, "");
}

TEST_F(ObjectiveConformance, FindsWrongGradients) {
  EXPECT_HAS(failures("half a gradient"), "the gradient of the loss with respect to logp[1] is ");
  EXPECT_HAS(failures("no gradient of nll"), "the gradient of the loss with respect to logp[0] is ");
  EXPECT_HAS(failures("gradient of the first token"),
             "data = \"rollouts\": with usual values: the gradient of the loss with ");
  EXPECT_HAS(failures("all wrong"),
             "data = \"classes\": with usual values: the gradient of the loss with respect to score[");
}

// The difference of new and old log-probabilities is a constant in the gradients, if the description says so.
TEST_F(ObjectiveConformance, FindsWrongGradientsNextToAStoppedRatio) {
  const std::string half = failures("half a weight");
  EXPECT_HAS(half, "data = \"weighted\": with usual values: the gradient of the loss with respect to token_logp[");
  EXPECT_HAS(failures("hides the stopped ratio"),
             "data = \"weighted\": with usual values: the gradient of the loss with respect to token_logp[");
}

TEST_F(ObjectiveConformance, FindsSumsThatAreNotThoseOfTheParts) {
  EXPECT_HAS(failures("divides by the batch"), "the sum of 2 parts: terms[0] is ");
  EXPECT_HAS(failures("weighs by place"), "with the units in another order: terms[0] is ");
  EXPECT_HAS(failures("adds for nothing"), "an empty batch adds 1 to terms[0], expected 0");
}

TEST_F(ObjectiveConformance, FindsNumbersThatAreNotFinite) {
  EXPECT_HAS(failures("overflows"), "with values up to ±1e4: plugin 'nonconforming_objective'");
  EXPECT_HAS(failures("overflows"), "evaluate() gives inf for terms[0] ('loss'), expected a finite number");
  EXPECT_HAS(failures("infinite metric"), "evaluate() gives inf for sums[0]");
  EXPECT_HAS(failures("takes NaN"), "data = \"values\": ");
  EXPECT_HAS(failures("prepares NaN"), "prepare() gives nan for sequence_state[1] (sequence 1, MISMATCH of unit 5)");
}

TEST_F(ObjectiveConformance, FindsAMismatchThatIsMoved) {
  EXPECT_HAS(failures("moves mismatches"), "for grad_logp[1] (sequence 1, MISMATCH of unit 5), expected 0");
}

TEST_F(ObjectiveConformance, FindsNumbersThatChange) {
  EXPECT_HAS(failures("counts calls"), "evaluate gives other numbers after it has seen another batch: terms[0] is ");
  EXPECT_HAS(failures("depends on gradients"), "evaluate gives other numbers if no gradients are asked for");
  EXPECT_HAS(failures("describes anew"), "another instance with the same options has another one");
  EXPECT_HAS(failures("prepares anew"), "prepare gives other values when it is repeated for the same batch");
  EXPECT_HAS(failures("prepares by order"), "if prepare gets the units in another order: terms[0] is ");
}

TEST_F(ObjectiveConformance, FindsOptionsThatDoNothingAndRefusalsThatAreNoRefusals) {
  EXPECT_HAS(failures("ignores margin"), "option 'margin' has no effect: ");
  EXPECT_HAS(failures("refuses as internal"), "beta = 10.0: ");
}

TEST_F(ObjectiveConformance, FindsAPrepareThatIsNeverCalled) {
  EXPECT_HAS(failures("pairs only"), "it has a function prepare, but asks for GLOBAL with none of the options");
}

TEST_F(ObjectiveConformance, FindsMemoryThatGrows) { EXPECT_HAS(failures("leaks"), "20 steps left "); }

TEST(ObjectiveSamples, DivideIntoUnits) {
  ObjectiveDesc desc;
  desc.units = CHASSIS_OBJECTIVE_ROLLOUTS;
  desc.needs = CHASSIS_OBJECTIVE_OLD_LOGPS | CHASSIS_OBJECTIVE_TOKENS;
  desc.num_targets = 1;
  desc.terms = {{"loss", CHASSIS_COUNT_TOKENS}};
  const ObjectiveBatch batch = sample_batch(desc, Sampling::kUsual);
  EXPECT_EQ(num_units(batch), 7u);
  EXPECT_EQ(batch.num_sequences(), 16u);  // 1, 2, 3, 4, 1, 2 and 3
  const BatchPart part = part_of(desc, batch, {2, 0});
  EXPECT_EQ(part.sequences, (std::vector<size_t>{3, 4, 5, 0}));
  EXPECT_EQ(part.batch.unit, (std::vector<uint64_t>{0, 0, 0, 2}));
  ASSERT_EQ(part.tokens.size(), part.batch.num_tokens());
  for (size_t i = 0; i < part.tokens.size(); ++i)
    EXPECT_EQ(part.batch.old_token_logp[i], batch.old_token_logp[part.tokens[i]]);
  EXPECT_EQ(part.batch.first_token.back(), part.batch.num_tokens());
}

}  // namespace
}  // namespace chassis
