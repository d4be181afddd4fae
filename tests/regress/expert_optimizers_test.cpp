// Optimizers on the weights of experts: divided runs have the weights and states of one process.
#include "tests/regress/started_run.hpp"
#include "tests/regress/whole_tensors.hpp"

namespace chassis::test {
namespace {

struct Case {
  const char *optimizer, *options, *state;  // one state of the experts
  bool is_cut_by_width;                     // tensor parallelism may divide it
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.optimizer; }
};

class ExpertOptimizers : public testing::TestWithParam<Case>, protected StartedRun {
 protected:
  ExpertOptimizers()
      : StartedRun({"run.threads=1", "run.max_steps=3", "train.micro_batch_size=1", "train.global_batch_size=12",
                    "optimizer.max_grad_norm=0"},
                   {"sdpa", "[\"grouped\", \"aten\"]"},
                   "plugin = \"mixtral\"\nconfig = { vocab_size = 101, hidden_size = 32, intermediate_size = 56, "
                   "num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, initializer_range = 0.1, "
                   "num_local_experts = 5, num_experts_per_tok = 2 }") {}

  // The fp32 tensors of the last checkpoint, whole.
  Values train_with(const Sharding& sharding) {
    train(sharding.name,
          {std::string("optimizer={plugin=\"") + GetParam().optimizer + "\", lr=2e-3" + GetParam().options + "}"},
          sharding);
    Values out;
    for (const auto& [name, tensor] : whole_tensors(checkpoint(sharding.name, 3), plugins_))
      if (tensor.dtype() == Dtype::f32) out[name] = floats_of(tensor);
    return out;
  }

  LoadedPlugins plugins_;
};

// Signs, codes and small singular values may differ if sums round differently.
TEST_P(ExpertOptimizers, StepLikeOneProcess) {
  const Values alone = train_with({});
  for (const char* linear : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string weight = std::string("model.layers.1.mlp.experts.") + linear + ".weight";
    EXPECT_TRUE(alone.contains(weight + GetParam().state)) << weight;
  }
  std::vector<Sharding> shardings = {
      {"fsdp2", 2, "[[parallel]]\nplugin = \"fsdp2\"\n"},
      {"zero3", 3, "[[parallel]]\nplugin = \"zero\"\nstage = 3\nstage3_param_persistence_threshold = 40\n"}};
  if (GetParam().is_cut_by_width)
    shardings.push_back({"tensor", 2, "[mesh]\ntp = 2\n[[parallel]]\nplugin = \"tensor\"\n"});
  for (const Sharding& sharding : shardings) {
    const Values ours = train_with(sharding);
    ASSERT_EQ(ours.size(), alone.size()) << sharding.name;
    EXPECT_LE(relative_l2(ours, alone), 1e-3) << sharding.name;
    std::printf("%s under %s: %.1e\n", GetParam().optimizer, sharding.name, relative_l2(ours, alone));
  }
}

INSTANTIATE_TEST_SUITE_P(, ExpertOptimizers,
                         testing::Values(Case{"muon", "", ".momentum_buffer", true}, Case{"lion", "", ".exp_avg", true},
                                         Case{"adamw8bit", ", min_8bit_size=512", ".exp_avg_absmax", false}),
                         [](const auto& info) { return info.param.optimizer; });

}  // namespace
}  // namespace chassis::test
