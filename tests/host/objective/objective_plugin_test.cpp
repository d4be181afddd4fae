// The host's view of an objective: what it refuses in a description, and which numbers it accepts.
#include "host/objective/objective_plugin.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "host/base/error.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class ObjectivePluginTest : public testing::Test {
 protected:
  ~ObjectivePluginTest() override { ::unsetenv("SCRIPT"); }

  // The plugin with this script; the last one that was made.
  ObjectivePlugin& make(const std::string& script) {
    ::setenv("SCRIPT", script.c_str(), 1);
    return plugin_.emplace(plugins_.create("objective", "scripted_objective"));
  }
  std::string refusal(const std::string& script) {
    return error_of([&] { make(script); });
  }
  template <class F>
  static std::string error_of(F&& body) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kPlugin) << error.message();
      return error.message();
    }
    return "";
  }

  // Two pairs.
  static ObjectiveBatch pairs() {
    ObjectiveBatch batch;
    batch.role = {CHASSIS_SEQUENCE_CHOSEN, CHASSIS_SEQUENCE_REJECTED, CHASSIS_SEQUENCE_CHOSEN,
                  CHASSIS_SEQUENCE_REJECTED};
    batch.unit = {0, 0, 4, 4};
    batch.margin = {0, 0, 1, 1};
    batch.logp = {-3, -4, -5, -6};
    batch.length = {1, 2, 3, 4};
    batch.term_weight = {0.5, 0.25};
    return batch;
  }
  // Two answers with a mismatch each.
  static ObjectiveBatch labelled() {
    ObjectiveBatch batch = pairs();
    batch.role = {CHASSIS_SEQUENCE_ANSWER, CHASSIS_SEQUENCE_MISMATCH, CHASSIS_SEQUENCE_ANSWER,
                  CHASSIS_SEQUENCE_MISMATCH};
    batch.margin.clear();
    batch.target = {1, 1, 0, 0};
    return batch;
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
  std::optional<ObjectivePlugin> plugin_;
};

TEST_F(ObjectivePluginTest, KeepsACopyOfTheDescription) {
  const ObjectiveDesc desc = make("").description();
  make("units=3 num_targets=2 values=2 num_scores=2 term0=other");  // overwrites the arrays of the plugin
  EXPECT_EQ(desc.units, CHASSIS_OBJECTIVE_PAIRS);
  EXPECT_EQ(desc.terms,
            (std::vector<ObjectiveTerm>{{"margin", CHASSIS_COUNT_UNITS}, {"nll", CHASSIS_COUNT_SEQUENCES}}));
  EXPECT_EQ(desc.metrics, (std::vector<ObjectiveMetric>{{"rewards/chosen", CHASSIS_BETTER_HIGHER},
                                                        {"rewards/rejected", CHASSIS_BETTER_LOWER}}));
  EXPECT_EQ(desc.num_sums, 4u);
  EXPECT_FALSE(desc == plugin_->description());
}

TEST_F(ObjectivePluginTest, AddsTheNeedsThatOthersImply) {
  EXPECT_TRUE(make("units=2 num_targets=1 needs=4 prepare").description().needs_global());
  EXPECT_TRUE(make("units=4 num_targets=1 needs=16").description().needs_tokens());
  EXPECT_TRUE(make("units=5 needs=32 top_k=2 temperature=1").description().needs_tokens());
}

TEST_F(ObjectivePluginTest, SaysWhatTheDataMustHave) {
  EXPECT_EQ(needs_of(make("units=2 num_targets=1 needs=4 prepare").description()),
            (SequenceNeeds{.units = CHASSIS_OBJECTIVE_LABELLED, .mismatches = true, .num_targets = 1}));
  EXPECT_EQ(needs_of(make("units=4 num_targets=1 needs=16").description()),
            (SequenceNeeds{.units = CHASSIS_OBJECTIVE_ROLLOUTS, .old_logps = true, .num_targets = 1}));
  EXPECT_EQ(needs_of(make("units=3 num_targets=1 values=2 num_scores=3 num_classes=3").description()),
            (SequenceNeeds{.units = CHASSIS_OBJECTIVE_TEXTS, .num_targets = 1, .num_classes = 3, .scores = true}));
  EXPECT_EQ(needs_of(make("units=5 needs=32 top_k=2 temperature=1").description()),
            (SequenceNeeds{.units = CHASSIS_OBJECTIVE_ANSWERS, .top_k = 2}));
  EXPECT_EQ(needs_of(make("needs=128").description()), (SequenceNeeds{.margins = true}));
}

TEST_F(ObjectivePluginTest, RefusesDescriptionsThatTheAbiDoesNotAllow) {
  const std::pair<const char*, const char*> cases[] = {
      {"no_describe", "describe"},
      {"values=3", "sets values to 3, expected 1 (LOGPS) or 2 (SCORES)"},
      {"units=0", "sets units to 0, expected 1 (PAIRS), 2 (LABELLED), 3 (TEXTS), 4 (ROLLOUTS) or 5 (ANSWERS)"},
      {"units=5", "sets units to 5 (ANSWERS) without TEACHER"},
      {"units=6", "sets units to 6"},
      {"needs=257", "sets the needs 256, which this host does not know"},
      {"num_terms=0", "gives no term, expected at least 1"},
      {"num_terms=2000", "gives 2000 terms, at most 1024"},
      {"null_terms", "gives 2 terms, but their array is NULL"},
      {"term0=", "gives term 0 no name"},
      {"null_name", "gives metric 1 no name"},
      {"long_name", "gives term 1 a name of 129 bytes, at most 128"},
      {"term1=a,b", "gives term 1 the name 'a,b', expected letters, digits and _ - . / @"},
      {"term1=margin", "gives term 1 the name 'margin' of another term"},
      {"metric0=loss", "gives metric 0 the name 'loss', which records of a run have themselves"},
      {"metric1=loss/nll", "gives metric 1 the name 'loss/nll', which records of a run have themselves"},
      {"metric0=rewards/rejected", "gives metric 1 the name 'rewards/rejected' of another metric"},
      {"count0=0", "divides term 'margin' by count 0, expected 1 to 5"},
      {"count1=6", "divides term 'nll' by count 6"},
      {"count1=5", "divides term 'nll' by TARGETS, but PAIRS have no targets"},
      {"count1=4 units=2 num_targets=1", "divides term 'nll' by CHOSEN_TOKENS with units 2, expected 1 (PAIRS)"},
      {"count1=3 values=2 num_scores=1", "divides term 'nll' by a number of tokens"},
      {"better1=3", "sets better of metric 'rewards/rejected' to 3"},
      {"num_sums=3", "sets num_sums to 3, but without the function metrics each of the 2 metrics needs 2 sums"},
      {"num_sums=1048577 metrics=1", "sets num_sums to 1048577, at most 1048576"},
      {"needs=2", "asks for GLOBAL, but the plugin has no function prepare"},
      {"state_size=1", "sets state_size to 1 and state_per_sequence to 0 without GLOBAL"},
      {"state_per_sequence=2", "sets state_size to 0 and state_per_sequence to 2 without GLOBAL"},
      {"state_size=1048577 needs=2 prepare", "sets state_size to 1048577, at most 1048576"},
      {"needs=4 prepare", "asks for MISMATCH with units 1, expected 2 (LABELLED)"},
      {"needs=16", "asks for OLD_LOGPS with units 1, expected 4 (ROLLOUTS)"},
      {"needs=64", "asks for OLD_LOGPS with units 1, expected 4 (ROLLOUTS)"},
      {"needs=128 units=2 num_targets=1", "asks for MARGINS with units 2, expected 1 (PAIRS)"},
      {"needs=32 top_k=2 temperature=1", "asks for TEACHER with units 1, expected 5 (ANSWERS)"},
      {"units=5 needs=32 temperature=1", "sets top_k to 0, expected 1 to 4096 with TEACHER"},
      {"top_k=3", "sets top_k to 3, expected 0 without TEACHER"},
      {"units=5 needs=32 top_k=2", "sets temperature to 0, expected a number above 0 with TEACHER"},
      {"temperature=1", "sets temperature to 1, expected 0 without TEACHER"},
      {"units=5 needs=32 top_k=2 temperature=1 num_targets=1", "sets num_targets to 1, expected 0 with PAIRS and"},
      {"num_scores=1", "sets num_scores to 1 with LOGPS, expected 0"},
      {"values=2", "sets num_scores to 0 with SCORES, expected 1 to 1048576"},
      {"values=2 num_scores=1 needs=1", "asks for REFERENCE with SCORES"},
      {"values=2 num_scores=1 needs=8", "asks for TOKENS with SCORES"},
      {"num_targets=1", "sets num_targets to 1, expected 0 with PAIRS"},
      {"units=2", "sets num_targets to 0, expected 1 with LABELLED and ROLLOUTS"},
      {"units=4 num_targets=2", "sets num_targets to 2, expected 1 with LABELLED and ROLLOUTS"},
      {"units=3", "sets num_targets to 0, expected 1 to 1048576 with TEXTS"},
      {"num_classes=2", "sets num_classes to 2, expected at most 0: only TEXTS have classes"},
  };
  for (const auto& [script, message] : cases) {
    const std::string text = refusal(script);
    EXPECT_HAS(text, message) << script;
    EXPECT_HAS(text, "plugin 'scripted_objective'") << script;
  }
}

TEST_F(ObjectivePluginTest, GivesTheArraysThatApplyEvenIfTheyAreEmpty) {
  // These are role, unit, logp, length and term_weight.
  constexpr double kPairs = 1 + 2 + 16 + 64 + 16384;
  EXPECT_EQ(make("").evaluate(pairs(), false).sums[0], kPairs);
  ObjectiveBatch none;
  none.term_weight = {0, 0};
  EXPECT_EQ(plugin_->evaluate(none, false).sums[0], kPairs);
  ObjectiveBatch more = pairs();
  more.reference_logp = more.logp;
  more.target = {1, 2, 3, 4};  // no objective of pairs has targets
  EXPECT_EQ(make("needs=128").evaluate(more, false).sums[0], kPairs + 8);
  EXPECT_EQ(make("needs=1").evaluate(more, false).sums[0], kPairs + 32);
  more.first_token = {0, 1, 3, 6, 10};
  more.token_logp.resize(10);
  more.reference_token_logp.resize(10);
  EXPECT_EQ(make("needs=9").evaluate(more, false).sums[0], kPairs + 32 + 256 + 512 + 1024);
  more.state = {1};
  more.sequence_state = {1, 2, 3, 4};
  EXPECT_EQ(make("needs=2 prepare state_size=1 state_per_sequence=1").evaluate(more, false).sums[0],
            kPairs + 4096 + 8192);
}

TEST_F(ObjectivePluginTest, AsksForGradientsOnRequest) {
  EXPECT_EQ(make("").evaluate(pairs(), false).sums[1], 0);
  const ObjectiveResult result = plugin_->evaluate(pairs(), true);
  EXPECT_EQ(result.sums[1], 1);
  EXPECT_EQ(result.grad_logp.size(), 4u);
  EXPECT_TRUE(result.grad_token_logp.empty());
}

TEST_F(ObjectivePluginTest, RefusesNumbersThatAreNotFinite) {
  const auto error = [&](const std::string& script) { return error_of([&] { make(script).evaluate(pairs(), true); }); };
  EXPECT_HAS(error("terms=nan"),
             "plugin 'scripted_objective' 0.1.0: evaluate() gives nan for terms[1] ('nll'), "
             "expected a finite number");
  EXPECT_HAS(error("sums=inf"), "evaluate() gives inf for sums[1], expected a finite number");
  EXPECT_HAS(error("grad_logp=-inf"), "evaluate() gives -inf for grad_logp[1] (sequence 1, REJECTED of unit 0)");
  ObjectiveBatch batch = pairs();
  batch.first_token = {0, 1, 3, 6, 10};
  batch.token_logp.resize(10);
  EXPECT_HAS(error_of([&] { make("needs=8 grad_token_logp=nan").evaluate(batch, true); }),
             "evaluate() gives nan for grad_token_logp[1] (sequence 1, REJECTED of unit 0)");
  batch.score = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_HAS(error_of([&] { make("values=2 num_scores=2 grad_score=nan").evaluate(batch, true); }),
             "evaluate() gives nan for grad_score[1] (sequence 0, CHOSEN of unit 0)");
}

TEST_F(ObjectivePluginTest, RefusesAGradientOfAMismatch) {
  EXPECT_HAS(error_of([&] { make("units=2 num_targets=1 needs=4 prepare grad_logp=1e-9").evaluate(labelled(), true); }),
             "evaluate() gives 1e-09 for grad_logp[1] (sequence 1, MISMATCH of unit 0), expected 0");
  EXPECT_EQ(make("units=2 num_targets=1 needs=4 prepare grad_logp=0").evaluate(labelled(), true).grad_logp[1], 0);
}

TEST_F(ObjectivePluginTest, NamesThePluginOfAnException) {
  const std::string text = error_of([&] { make("throws").evaluate(pairs(), true); });
  EXPECT_HAS(text, "plugin 'scripted_objective'");
  EXPECT_HAS(text, "no idea");
}

TEST_F(ObjectivePluginTest, PreparesWithoutStateOrWeights) {
  std::vector<double> state, sequence_state;
  make("needs=2 prepare state_size=2 state_per_sequence=1").prepare(pairs(), state, sequence_state);
  EXPECT_EQ(state, (std::vector<double>{4, 0}));
  EXPECT_EQ(sequence_state, std::vector<double>(4));
  const std::string sizes = "needs=2 prepare state_size=2 state_per_sequence=2 ";
  EXPECT_HAS(error_of([&] { make(sizes + "state=nan").prepare(pairs(), state, sequence_state); }),
             "prepare() gives nan for state[1], expected a finite number");
  EXPECT_HAS(error_of([&] { make(sizes + "sequence_state=inf").prepare(pairs(), state, sequence_state); }),
             "prepare() gives inf for sequence_state[2] (sequence 1, REJECTED of unit 0)");
}

TEST_F(ObjectivePluginTest, DividesSumsIntoMetrics) {
  const std::vector<double> quotients = make("").metrics({3, 2, 1, 0});
  EXPECT_EQ(quotients[0], 1.5);
  EXPECT_TRUE(std::isnan(quotients[1]));
  EXPECT_EQ(make("metrics=7").metrics({3, 2, 1, 5}), (std::vector<double>{8, 7}));
  EXPECT_TRUE(std::isnan(make("metrics=nan").metrics({3, 2, 1, 5})[1]));
  EXPECT_HAS(error_of([&] {
               make("metrics=inf").metrics({3, 2, 1, 5});
             }),
             "metrics() gives inf for 'rewards/rejected', expected a finite number, or NaN if it is not known");
}

TEST_F(ObjectivePluginTest, CountsWhatTermsAreDividedBy) {
  EXPECT_EQ(counts_of(make("count0=1 count1=2").description(), pairs()), (std::vector<double>{2, 4}));
  EXPECT_EQ(counts_of(make("count0=3 count1=4").description(), pairs()), (std::vector<double>{10, 4}));
  ObjectiveBatch batch = labelled();
  batch.target = {1, 1, kNaN, 0};
  const std::string labels = "units=2 num_targets=1 needs=4 prepare ";
  EXPECT_EQ(counts_of(make(labels + "count0=1 count1=2").description(), batch), (std::vector<double>{2, 2}));
  EXPECT_EQ(counts_of(make(labels + "count0=3 count1=5").description(), batch), (std::vector<double>{4, 1}));
}

TEST_F(ObjectivePluginTest, RefusesABatchWithoutAnArrayThatItNeeds) {
  ObjectiveBatch batch = pairs();
  batch.length.pop_back();
  make("");
  try {
    plugin_->evaluate(batch, true);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_HAS(error.message(), "the array length of a batch of an objective has 3 elements, expected 4");
  }
}

}  // namespace
}  // namespace chassis
