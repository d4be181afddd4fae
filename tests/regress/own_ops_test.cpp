// Ops and optimizers that plugins bring: whatever divides the run, they give the numbers of one process, or are
// refused.
#include <gtest/gtest.h>

#include "tests/regress/parallel_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

const Strategy kTensor = {"tensor", {"plugin = \"tensor\""}, no_mesh, 2},
               kSequence = {"sequence", {"plugin = \"tensor\"", "sequence_parallel = true"}, no_mesh, 2},
               kRing = {"rings", {"plugin = \"tensor\"", "sequence_parallel = true", "overlap = \"ring\""}, no_mesh, 2},
               kTensorOf4 = {"tensor of 4", {"plugin = \"tensor\""}, no_mesh, 4},
               kContext = {"context", {"plugin = \"context\"", "mode = \"gather\""}, no_mesh, 2},
               kFsdp2 = {"fsdp2", {"plugin = \"fsdp2\""}, no_mesh}, kDdp = {"ddp", {"plugin = \"ddp\""}, no_mesh},
               kPipeline = {"pipeline", {"plugin = \"pipeline\""}, no_mesh, 2};

Strategy zero(const char* name, const char* stage) {
  return {name, {"plugin = \"zero\"", std::string("stage = ") + stage}, no_mesh};
}

class OwnOpsRun : public ParallelRun {
 public:
  // `ops`: TOML of the model's own ops.
  OwnOpsRun(const std::string& ops, bool declares, bool bf16 = false, int vocab_size = 96)
      : ParallelRun(Variant::of_bits(bf16 ? 1 : 0),
                    "plugin = \"own_ops\"\nconfig = { vocab_size = " + std::to_string(vocab_size) + ", ops = [" + ops +
                        "], declares = " + (declares ? "true" : "false") + " }\n") {
    add_stub_plugins();
    replace("[\"fused\"", "[\"own_ops\", \"fused\"");
  }
};

void expect_under(ParallelRun& run, const Result& alone, const Strategy& strategy, int ranks) {
  SCOPED_TRACE(strategy.name);
  expect_the_numbers(run(&strategy, ranks), alone, false, strategy.name);
}

// A shift of positions, a mean over a divided dim, a mean over heads that ranks share, a loss over the vocabulary that
// is added to the cross entropy, and ops that compute each element by itself, one of them with a parameter that is
// divided.
const char* const kAllOps =
    "\"shift\", \"center\", \"center_keys\", \"z_loss\", \"place\", \"gain\", \"shift_in_head\"";

TEST(OwnOps, ThatDeclareNothingGetWholeValues) {
  OwnOpsRun run(kAllOps, false);
  const Result alone = run(nullptr, 1);
  expect_under(run, alone, kSequence, 2);
  expect_under(run, alone, kTensorOf4, 4);
}
TEST(OwnOpsSlow, AreRightUnderEveryStrategy) {
  for (const bool declares : {false, true}) {
    OwnOpsRun run(kAllOps, declares);
    const Result alone = run(nullptr, 1);
    for (const Strategy& strategy : {kTensor, kSequence, kRing, kFsdp2, kDdp, zero("zero1", "1"), zero("zero2", "2"),
                                     zero("zero3", "3"), kPipeline})
      expect_under(run, alone, strategy, 2);
    expect_under(run, alone, kTensorOf4, 4);
  }
}

TEST(OwnOps, AreDividedAlongDimsThatTheyDoNotMix) {
  OwnOpsRun run(kAllOps, true);
  const Result alone = run(nullptr, 1);
  expect_under(run, alone, kRing, 2);
}

TEST(OwnOps, ThatDoNotMixPositionsAreDividedAlongThem) {
  OwnOpsRun run("\"center\", \"center_keys\", \"z_loss\", \"place\", \"gain\"", true);
  const Result alone = run(nullptr, 1);
  const Strategy both = beside(
      "context and tensor", {"plugin = \"context\"", "mode = \"gather\""}, kSequence.toml,
      [](int) {
        return std::vector<std::string>{"mesh.tp=2", "mesh.cp=2"};
      },
      4);
  expect_under(run, alone, both, 4);
}

TEST(OwnOps, ThatMixPositionsAreRefusedByAnAxisThatDividesThem) {
  OwnOpsRun declared("\"shift\"", true), silent("\"place\"", false);
  std::string error = refusal_of(declared, kContext, 2);
  EXPECT_HAS(error,
             "plugin 'context' 0.1.0 along axis 'cp' cannot divide T, the positions, of block 'layer': "
             "op trial/shift 'shift' mixes 'T'");
  EXPECT_HAS(error, "mesh.cp = 1");
  error = refusal_of(silent, kContext, 2);
  EXPECT_HAS(error, "op trial/place 'place' does not declare which dims it mixes, so it may mix 'T'");
  EXPECT_HAS(error, "let the model declare its mixed_dims");
}

// The cross entropy of the labels is a part of the loss, whatever the model adds to it. A part that is scaled has a
// scaled gradient.
TEST(OwnOps, MayAddALoss) {
  OwnOpsRun none("", true), whole("\"z_loss\"", true), scaled("\"scaled_z\"", true);
  const Result expected = whole(nullptr, 1), alone = scaled(nullptr, 1);
  expect_the_numbers(alone, expected, false, "a scaled sum of squares");
  // 1e-3 · log(96)² of each label, if all classes were equally probable.
  EXPECT_NEAR(expected.losses[0] - none(nullptr, 1).losses[0], 0.021, 0.004);
  expect_under(scaled, alone, kContext, 2);
}

TEST(OwnOps, HaveALossInFp32) {
  OwnOpsRun wide("\"z_loss\"", true, true), narrow("\"narrow_z\"", true, true);
  wide(nullptr, 1);
  EXPECT_HAS(wide.log(), "trial/z_loss gives float32");
  EXPECT_HAS(wide.log(), "trial/relu2 gives bfloat16");
  EXPECT_HAS(refusal_of(narrow, kContext, 2),
             "model 'own_ops': the output \"aux_loss\" of block 'head' is the value 'z_loss' in the precision of the "
             "run, expected float32");
}

TEST(OwnOps, AreShownWithWhatTheyMix) {
  OwnOpsRun run("\"center\", \"shift\"", true);
  const std::string graph = run.output_of_verb("check", &kTensor, {"--graph", "mesh.tp=2"});
  EXPECT_HAS(graph, "layer.center: trial/center mixes ffn");
  EXPECT_HAS(graph, "layer.shift: trial/shift mixes T; generation that reads it computes the whole row for each token");
  EXPECT_HAS(graph, "layer.relu2: trial/relu2 mixes no dim");
  EXPECT_HAS(graph, " × gather");
}

// The text does not depend on the cache, which an op over positions cannot have.
TEST(OwnOps, SeeWholeRowsInGeneration) {
  OwnOpsRun run("\"shift\", \"shift_in_head\", \"place\"", true, false, 272);
  run.output_of(nullptr, 1, {"run.max_steps=2"});
  const auto text = [&](std::vector<std::string> more) {
    more.insert(more.end(),
                {"tokenizer.plugin=bytes", "generate.temperature=0", "--prompt", "!\"#", "generate.max_new_tokens=12"});
    return run.output_of_verb("generate", nullptr, more);
  };
  const std::string cached = text({});
  EXPECT_HAS(run.errors(), "again for each token: op trial/shift 'shift' of block");
  EXPECT_EQ(cached, text({"--no-cache"}));
}

void expect_equal_sums(const std::vector<Strategy>& strategies) {
  ParallelRun run(Variant::of_bits(0b100000));  // with tied embeddings, of which two stages have one each
  run.add_stub_plugins();
  run.use_optimizer("plugin = \"normalised\"\nlr = 1e-3\nweight_decay = 0.1\n");
  const Result alone = run(nullptr, 1);
  for (const Strategy& strategy : strategies) expect_under(run, alone, strategy, 2);
}
TEST(SumOverParameters, IsThatOfOneProcess) { expect_equal_sums({kFsdp2, kTensor, kPipeline}); }
TEST(SumOverParametersSlow, IsThatOfOneProcess) {
  expect_equal_sums({kDdp, zero("zero1", "1"), zero("zero2", "2"), zero("zero3", "3"), kSequence});
}

}  // namespace
}  // namespace chassis::test
