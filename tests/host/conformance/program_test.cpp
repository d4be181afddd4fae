// The conformance tests of strategies, models and ops providers find each fault of nonconforming ones.
#include "host/conformance/ops_checks.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "host/conformance/model_checks.hpp"
#include "host/conformance/parallel_checks.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/op_coverage.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

// Left out: lengths of prefixes, calls that compute a part of the positions, and attributes that only the host reads.
TEST(OpsCases, CoverTheOpTable) {
  EXPECT_EQ(test::missing_from(ops_of_cases()),
            (std::vector<std::string>{"attention.prefix", "attention.query_part", "attention.key_part",
                                      "dropout.query_part", "top_experts.aux_weight", "top_experts.balance"}));
}

class Conformance : public testing::Test {
 protected:
  ~Conformance() override { ::unsetenv("NONCONFORMING"); }
  static std::string text_of(const std::vector<std::string>& failures) {
    std::string text;
    for (const std::string& failure : failures) text += failure + "\n";
    return text;
  }

  std::string strategy(const std::string& id, const std::string& fault = "") {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    return text_of(parallel_failures([&] { return plugins_.make("parallel", id); },
                                     [&] { return plugins_.make("comm", "fake"); }, plugins_.metrics()));
  }
  std::string model(const std::string& id, const std::string& config, const std::string& fault = "",
                    const std::string& provider = "reference") {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    const std::vector<OpsProvider> oracles = {plugins_.ops(provider), plugins_.ops("reference"), plugins_.ops("naive")};
    return text_of(model_failures([&] { return plugins_.make("model", id); }, config, oracles));
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
};

TEST_F(Conformance, OurStrategiesPass) {
  for (const char* id : {"ddp", "fsdp2", "zero", "nonconforming"}) EXPECT_EQ(strategy(id), "") << id;
}

TEST_F(Conformance, FindsAStrategyThatClaimsOrPlacesWrongly) {
  EXPECT_HAS(strategy("nonconforming", "claims nothing"), "rank 0: resolve: ");
  EXPECT_HAS(strategy("nonconforming", "claims tp"), "'tp' is not a data axis");
  EXPECT_HAS(strategy("nonconforming", "leaves one out"),
             "no strategy of [[parallel]] says where parameter 'layers.0.down.weight' lives");
  EXPECT_HAS(strategy("nonconforming", "places twice"), "places parameter 'layers.0.down.weight' twice");
  EXPECT_HAS(strategy("nonconforming", "divides twice"),
             "over dp_shard+dp_shard: mesh axis 'dp_shard' is already placed");
  EXPECT_HAS(strategy("nonconforming", "another place"), "ranks 0 and 2 place parameter 'embed.weight' differently");
}

TEST_F(Conformance, FindsAStrategyWhoseRanksWouldDeadlock) {
  EXPECT_HAS(strategy("nonconforming", "another order"),
             "ranks differ and would deadlock: rank 0 has \"step 1: finish_grads: ");
}

TEST_F(Conformance, FindsAStrategyThatOmitsAnEvent) {
  EXPECT_HAS(strategy("nonconforming", "not whole"),
             "step 1: pre_forward of layers.1: parameter 'layers.1.up.weight' is not gathered");
  const std::string forgets = strategy("nonconforming", "forgets a gradient");
  EXPECT_HAS(forgets, "was not reduced by the end of the step");
  EXPECT_HAS(forgets, "plugin 'nonconforming' 0.1.0: the gradient of '");
  EXPECT_HAS(strategy("nonconforming", "stale"), "was not updated after the optimizer step");
  EXPECT_HAS(strategy("nonconforming", "holds on"),
             "evaluation after step 1: drain: parameter 'layers.1.up.weight' is still gathered");
}

TEST_F(Conformance, AnErrorOfAStrategyNamesTheEventAndTheUnit) {
  EXPECT_HAS(strategy("nonconforming", "gives up"), "plugin 'nonconforming' 0.1.0 in pre_forward (unit 2): it gave up");
}

TEST_F(Conformance, OurModelsPass) {
  EXPECT_EQ(model("llama", sample_model_configs({"LlamaForCausalLM"}).front()), "");
  EXPECT_EQ(model("nonconforming", "{}", "", "nonconforming"), "");
}

TEST_F(Conformance, FindsAModelThatIsNotReproducible) {
  EXPECT_HAS(model("nonconforming", "{}", "recorded anew"), "a second recording has \"parameter other.weight");
  EXPECT_HAS(model("nonconforming", "{}", "another program"),
             "another instance records a different program from its config: \"dim hidden = 12\"");
  EXPECT_HAS(model("nonconforming", "{}", "no config"), "its config is not a JSON object: 'hidden'");
  EXPECT_HAS(model("nonconforming", "{}", "a config of its own"),
             "another instance returns a different config: 'family' is absent, expected \"nonconforming\"");
  EXPECT_HAS(model("nonconforming", "{}", "drops keys"), "config() drops the key 'conformance_unknown' of the config");
  EXPECT_HAS(model("nonconforming", "{}", "takes any config"), "it accepts the invalid config ''");
}

TEST_F(Conformance, FindsAModelThatSeesWhatItMustNotSee) {
  EXPECT_HAS(model("nonconforming", "{}", "sees later tokens"),
             "the logits of position 0 change with the id of position 7, which comes later: it is not causal");
  EXPECT_HAS(model("nonconforming", "{}", "sees other documents"),
             "the logits of position 3 change with the ids of another document of the row: attention must not cross");
}

TEST_F(Conformance, FindsAModelWithoutLogitsOrWithImpossibleNumbers) {
  EXPECT_HAS(model("nonconforming", "{}", "no logits"),
             "its last block 'head' has no output \"logits\" [B, T, vocab], which ");
  EXPECT_HAS(model("nonconforming", "{}", "a loss"), "delete the line b.output(\"loss\", …) of block 'head'; a loss ");
  EXPECT_HAS(model("nonconforming", "{}", "no scalar"), "the output \"aux_loss\" of block 'head' is the value ");
  EXPECT_HAS(model("nonconforming", "{}", "a narrow loss"),
             "in the precision of the run, expected float32: an op of the plugin's own declares output_dtype = ");
  EXPECT_HAS(model("nonconforming", "{}", "negative positions"), "max_positions() returns -5, expected a number of ");
  EXPECT_HAS(model("nonconforming", "{}", "no deviation"), "of block 'head' has the init_std nan, expected a number ");
}

TEST_F(Conformance, FindsAMappingThatLosesElements) {
  EXPECT_HAS(model("nonconforming", "{}", "one name for two"), "two tensors are called 'disk.0.upper' on disk");
  EXPECT_HAS(model("nonconforming", "{}", "no such parameter"),
             "'disk.ends' on disk is made of 'tail.weight', which is not a parameter of the model");
  EXPECT_HAS(model("nonconforming", "{}", "a row twice"),
             "elements [3:4, 0:10] of parameter 'layers.0.second.weight' [10, 10] are on disk in 'disk.0.upper' and "
             "again in 'disk.0.lower'");
  EXPECT_HAS(model("nonconforming", "{}", "a row nowhere"),
             "parameter 'layers.0.second.weight' [10, 10] has 100 elements, of which only 90 are on disk, in "
             "'disk.0.upper', 'disk.0.lower'");
  EXPECT_HAS(model("nonconforming", "{}", "skips its own"),
             "the pattern 'disk.*.first' skips 'disk.0.first', which is a tensor of the model");
}

TEST_F(Conformance, ChecksAModelThatHasScoresInPlaceOfLogits) {
  EXPECT_EQ(model("nonconforming", "{}", "scores", "nonconforming"), "");
  EXPECT_HAS(model("nonconforming", "{}", "scores that see later tokens"),
             "the scores of position 0 change with the id of position 7, which comes later: it is not causal");
  EXPECT_HAS(model("nonconforming", "{}", "scores of rows"), "the output \"scores\" of block 'head' is the value ");
}

TEST_F(Conformance, FindsWrongGradients) {
  EXPECT_HAS(model("nonconforming", "{}", "half a gradient", "nonconforming"),
             "the gradient of 'embed.weight' predicts that the loss changes by ");
}

TEST_F(Conformance, FindsAnOpsProviderThatDiffersFromTheReference) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  EXPECT_EQ(text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures), "");
  ::setenv("NONCONFORMING", "half a gradient", 1);
  EXPECT_HAS(text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures),
             "mul in f32: gradient of a[");
}

TEST_F(Conformance, ComparesAPatternThatNoOpHasByItself) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  const ConformanceResult right = compare_with_oracles(plugins_.ops("norm_linear"), oracles);
  EXPECT_EQ(text_of(right.failures), "");
  EXPECT_EQ(right.num_compared, 2u) << "with the result of the norm as an output, and without";
  EXPECT_EQ(right.untested_patterns, std::vector<std::string>());
  ::setenv("NONCONFORMING", "no projection", 1);
  EXPECT_HAS(text_of(compare_with_oracles(plugins_.ops("norm_linear"), oracles).failures),
             "rms_norm+linear in f32: gradient of x[");
  ::setenv("NONCONFORMING", "overwrites gradients", 1);
  EXPECT_HAS(text_of(compare_with_oracles(plugins_.ops("norm_linear"), oracles).failures),
             "added to that of the micro-batch before");
}

TEST_F(Conformance, SaysThatAPatternHasNoTest) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  OpsProvider provider = plugins_.ops("norm_linear");
  chassis_ops_t table = *provider.table;
  const chassis_str_t patterns[] = {{"mine/op+linear", 14}, {"cross_entropy+linear", 20}};
  table.patterns = patterns;
  table.num_patterns = 2;
  provider.table = &table;
  const ConformanceResult result = compare_with_oracles(provider, oracles);
  EXPECT_EQ(result.num_compared, 0u);
  EXPECT_EQ(result.untested_patterns, (std::vector<std::string>{"mine/op+linear", "cross_entropy+linear"}));
}

TEST_F(Conformance, FindsAnOpsProviderThatDoesNotRefuseUnknownAttributes) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  ::setenv("NONCONFORMING", "any attribute", 1);
  EXPECT_HAS(text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures),
             "mul.mul: claim fails for mul with an attribute 'conformance_unknown', where it must refuse: claim "
             "accepts mul without refuse_attrs_other_than");
}

TEST_F(Conformance, FindsAnOpsProviderWhoseParameterGradientsAreNotWrittenOrAdded) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  const auto failures_of = [&](const char* fault) {
    ::setenv("NONCONFORMING", fault, 1);
    return text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures);
  };
  for (const char* fault : {"writes no gradient", "always adds"})
    EXPECT_HAS(failures_of(fault), "embedding in f32: gradient of weight[0] is ") << fault;
  const std::string never = failures_of("never adds");
  EXPECT_EQ(never.find("gradient of weight["), std::string::npos) << never;
  EXPECT_HAS(never, "embedding in f32: gradient of weight, added to that of the micro-batch before[");
}

TEST_F(Conformance, FindsAnOpsProviderThatDeclaresNonsenseReplacesOutputsOrLeaks) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  const auto failures_of = [&](const char* fault) {
    ::setenv("NONCONFORMING", fault, 1);
    std::string failures;
    const std::string refusal = test::refusal(
        [&] { failures = text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures); });
    return refusal + failures;
  };
  EXPECT_HAS(failures_of("no number"), "provider 'nonconforming' on embedding.");
  EXPECT_HAS(failures_of("no number"), "claim gives nan as its cost");
  EXPECT_HAS(failures_of("unknown flags"), "infer sets flags 0x100000, which this host does not know; it knows 0x7f");
  EXPECT_HAS(failures_of("replaces an output"), "output 0 is not the handle that the host gave it to write to");
  EXPECT_HAS(failures_of("leaks"), "20 runs left 524");
}

TEST_F(Conformance, FindsAnOpsProviderWhoseAnswersOrResultsChange) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  const auto failures_of = [&](const char* fault) {
    ::setenv("NONCONFORMING", fault, 1);
    return text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures);
  };
  EXPECT_HAS(failures_of("not repeatable"), "mul in f32: y[0] is ");
  EXPECT_HAS(failures_of("not repeatable"), " when the same call is repeated; the same inputs must give the same bits");
  EXPECT_HAS(failures_of("another cost"), "mul in f32: mul.mul: claim is not pure: the same node costs ");
  EXPECT_HAS(failures_of("another answer"),
             "mul in f32: mul.mul: infer is not pure: when it is asked again about the same node, "
             "workspace_forward_bytes was ");
  EXPECT_HAS(failures_of("another tile"),
             "mul in f32: mul.mul: infer is not pure: when it is asked again about the same node, tile was ");
}

TEST_F(Conformance, FindsAnOpsProviderThatIsRightOnlySometimes) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  const auto failures_of = [&](const char* fault) {
    ::setenv("NONCONFORMING", fault, 1);
    return text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures);
  };
  EXPECT_HAS(failures_of("wrong outside of training"), "mul in f32: y outside of training[0] is ");
  EXPECT_HAS(failures_of("wrong if large"), "mul, large in f32: y[0] is 0.000000, the reference has ");
  EXPECT_HAS(failures_of("one factor"), "scale in f32: y[");
  EXPECT_HAS(failures_of("alternates"), " when the same call is repeated; the same inputs must give the same bits");
  EXPECT_HAS(failures_of("claims every second time"), "in f32: claim is not pure: it refuses the node first, and ");
}

TEST_F(Conformance, FindsAnOpsProviderThatIsWrongOnlyForSomeChoicesOfExperts) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  const auto failures_of = [&](const char* fault) {
    ::setenv("NONCONFORMING", fault, 1);
    return text_of(compare_with_oracles(plugins_.ops("nonconforming_experts"), oracles).failures);
  };
  EXPECT_EQ(failures_of(""), "");
  EXPECT_HAS(failures_of("leaves empty experts as they are"), "grouped_linear in f32: gradient of weight[");
  const std::pair<const char*, const char*> faults[] = {
      {"wrong for a single expert", "grouped_linear, a single expert in f32: y[0] is "},
      {"wrong if one expert has all rows", "grouped_linear, all tokens to one of several experts in f32: y[0] is "},
      {"wrong without rows", "grouped_linear, no token with an expert in f32: y[0] is "},
      {"wrong for one token", "grouped_linear, one token in a row in f32: y[0] is "}};
  for (const auto& [fault, text] : faults) {
    const std::string failures = failures_of(fault);
    EXPECT_HAS(failures, text);
    EXPECT_EQ(failures.find("grouped_linear in f32"), std::string::npos) << "only that case shows it: " << failures;
  }
}

TEST_F(Conformance, FindsAnOpsProviderWhoseAnswersMeanNothing) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  const auto failures_of = [&](const char* fault) {
    ::setenv("NONCONFORMING", fault, 1);
    return text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures);
  };
  EXPECT_HAS(failures_of("stray bits"),
             "mul in f32: mul.mul: infer sets the bits 0x20 of keeps_outputs, but the node has only 1 output\n");
  EXPECT_HAS(failures_of("stray saved tensor"),
             "mul in f32: mul.mul: infer describes saved[2] (dtype 1, sizes []), but its num_saved is 0");
  EXPECT_HAS(failures_of("a tile twice"), "mul in f32: mul.mul: infer lists the tile 64 × 64 twice");
  EXPECT_HAS(failures_of("gradients at once"),
             "mul in f32: mul.mul: infer sets FORWARD_BACKWARD, which is only for nodes whose one output is a loss");
  ::unsetenv("NONCONFORMING");
  OpsProvider leaky = plugins_.ops("nonconforming");
  chassis_ops_t table = *leaky.table;
  table.destroy_kernel = nullptr;
  leaky.table = &table;
  EXPECT_EQ(text_of(compare_with_oracles(leaky, oracles).failures),
            "its table has create_kernel, but no function destroy_kernel, so no kernel can be freed\n");
}

TEST_F(Conformance, ComparesResultsOfOpsByName) {
  const std::vector<OpsProvider> oracles = {plugins_.ops("reference"), plugins_.ops("naive")};
  ::setenv("NONCONFORMING", "leaves out a gradient", 1);
  const std::string failures = text_of(compare_with_oracles(plugins_.ops("nonconforming"), oracles).failures);
  EXPECT_HAS(failures, "mul in f32: gradient of a is left out, which means zero, but the reference has ");
  EXPECT_EQ(failures.find("gradient of b"), std::string::npos) << failures;
}

}  // namespace
}  // namespace chassis
