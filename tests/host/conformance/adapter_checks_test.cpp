// The conformance tests of adapters find each fault of a nonconforming one.
#include "host/conformance/adapter_checks.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

class AdapterConformance : public testing::Test {
 protected:
  AdapterConformance() {
    const std::string config = adapter_base_configs({"LlamaForCausalLM"}).front();
    model_.configure(config);
    const Recording recording{[this](const chassis_builder_t* builder) { return model_.record(builder); }};
    bases_.push_back({"llama", compile(recording, {}).program(), config, &model_});
  }
  ~AdapterConformance() override { ::unsetenv("NONCONFORMING"); }

  AdapterReport report(const std::string& id, const std::string& fault = "") {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    const std::vector<OpsProvider> oracles = {plugins_.ops("nonconforming_adapter"), plugins_.ops("reference"),
                                              plugins_.ops("naive")};
    return examine_adapter([&] { return plugins_.make("adapter", id); }, bases_, oracles);
  }
  std::string failures(const std::string& fault) {
    std::string text;
    for (const std::string& failure : report("nonconforming_adapter", fault).failures) text += failure + "\n";
    return text;
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
  ModelPlugin model_{plugins_.create("model", "llama")};
  std::vector<AdapterBase> bases_;
};

TEST_F(AdapterConformance, OurAdaptersPass) {
  for (const char* id : {"lora", "nonconforming_adapter"}) {
    const AdapterReport found = report(id);
    EXPECT_EQ(found.failures, std::vector<std::string>()) << id;
    EXPECT_EQ(found.left_out, "") << id;
  }
}

TEST_F(AdapterConformance, TrainedParametersOfTheBaseAreComparedToo) { EXPECT_EQ(failures("trains a bias"), ""); }

TEST_F(AdapterConformance, FindsAnAdapterThatIsNotReproducible) {
  EXPECT_HAS(failures("recorded anew"), "llama: another instance records a different program: \"");
  EXPECT_HAS(failures("another program"),
             "llama: another instance records a different program from its config: "
             "\"parameter self_attn.q_proj.other [3, 48]");
  EXPECT_HAS(failures("no config"), "llama: its config is not a JSON object: 'rank'");
  EXPECT_HAS(failures("no type"),
             "llama: its config has \"other\" as \"peft_type\", expected \"nonconforming_adapter\"");
  EXPECT_HAS(failures("reaches nothing"), "llama: no gradient reaches '");
  EXPECT_HAS(failures("refuses its config"), "llama: another instance refuses its config: ");
  EXPECT_HAS(failures("takes any config"), "it accepts the invalid config '{'");
  EXPECT_HAS(failures("takes any config"), "it accepts the invalid config '{\"peft_type\": \"NO_SUCH_ADAPTER\"}'");
}

TEST_F(AdapterConformance, FindsAProgramThatIsNotValid) {
  EXPECT_HAS(
      failures("other dims"),
      "llama: its program is not valid: module 'self_attn.q_proj': replace_output gets a value of [B, T, rank=3]");
}

TEST_F(AdapterConformance, FindsWhatDoesNotTrain) {
  EXPECT_HAS(failures("adds nothing"), "llama: it trains no parameter");
  EXPECT_HAS(failures("half a gradient"),
             "llama: the gradient of 'model.layers.0.self_attn.q_proj.down' predicts that "
             "the loss changes by ");
  EXPECT_HAS(failures("no number"), "llama: with fresh values of its parameters the loss is ");
}

TEST_F(AdapterConformance, FindsAMergeThatComputesSomethingElse) {
  for (const char* fault : {"merges nothing", "merges half", "loses the base"})
    EXPECT_HAS(failures(fault), "llama: merged into the base, the loss is ") << fault;
  EXPECT_HAS(failures("merges from row 0"), "of 'model.layers.0.self_attn.q_proj.weight' is ");
  EXPECT_HAS(failures("merges from row 0"), " when it is merged in 4 boxes");
}

TEST_F(AdapterConformance, ReportsWhatIsUnusualButAllowed) {
  EXPECT_HAS(report("nonconforming_adapter", "no identity").left_out,
             "llama: with fresh values of its parameters the loss is ");
  const AdapterReport refused = report("nonconforming_adapter", "refuses models");
  EXPECT_EQ(refused.failures, std::vector<std::string>());
  EXPECT_EQ(refused.num_bases, 0);
  EXPECT_HAS(refused.left_out, "it refuses the model 'llama': ");
  EXPECT_HAS(refused.left_out, "'model.layers.0.self_attn.q_proj' is not for me");
}

}  // namespace
}  // namespace chassis
