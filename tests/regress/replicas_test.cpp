// Replicas of parameters that drift apart are found, under every strategy that keeps replicas.
#include <filesystem>

#include "tests/support/program_run.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

struct Replicas {
  const char* name;
  int num_ranks;
  const char* toml;
  const char* parameter;
  const char* ranks;  // in the message: the one that drifts and those that share its part
};

void PrintTo(const Replicas& row, std::ostream* out) { *out << row.name; }

class DriftingReplicas : public ProgramRun, public testing::WithParamInterface<Replicas> {
 protected:
  DriftingReplicas() {
    const std::string text = text_of_file(scratch_ / "run.toml");
    write_text(scratch_ / "run.toml", text.substr(0, text.find("[optimizer]")) +
                                          "[plugins]\npath = [\"" CHASSIS_TEST_STUB_DIR "\"]\n" +
                                          "[optimizer]\nplugin = \"drifting\"\nlr = 1e-2\n" + GetParam().toml);
  }
  Outcome run(int faulty_rank, Words overrides) {
    overrides.insert(overrides.end(),
                     {"optimizer.rank=" + std::to_string(faulty_rank), "--nproc", std::to_string(GetParam().num_ranks),
                      "run.threads=1", "train.micro_batch_size=1",
                      std::string("optimizer.parameter=\"") + GetParam().parameter + "\""});
    return train(overrides);
  }
};

TEST_P(DriftingReplicas, AreFoundBeforeASaveAndLeaveTheCheckpointsBefore) {
  const Outcome found = run(GetParam().num_ranks - 1, {"checkpoint.every_steps=1", "optimizer.step=3"});
  EXPECT_EQ(found.exit_code, 6) << found.output;
  EXPECT_HAS(found.output, std::string("replicas have drifted apart after step 3: the parameter '") +
                               GetParam().parameter + "' has the checksum ");
  EXPECT_HAS(found.output, GetParam().ranks);
  EXPECT_HAS(found.output, "the last intact checkpoint is out/checkpoints/step-000002");
  EXPECT_FALSE(fs::exists(scratch_ / "out/checkpoints/step-000003"));
  // The checkpoint saved before is intact, and the run continues from it.
  const Outcome resumed = run(-1, {});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_HAS(resumed.output, "resumed from out/checkpoints/step-000002 at step 2");
}

INSTANTIATE_TEST_SUITE_P(
    All, DriftingReplicas,
    testing::Values(Replicas{"ddp", 2, "[[parallel]]\nplugin = \"ddp\"\n", "model.layers.0.self_attn.q_proj.weight",
                             " on rank 1 and "},
                    Replicas{"hsdp", 4, "[[parallel]]\nplugin = \"fsdp2\"\n[mesh]\ndp_replicate = 2\ndp_shard = 2\n",
                             "model.layers.1.mlp.down_proj.weight", " on rank 3 and "},
                    Replicas{"tensor", 2, "[[parallel]]\nplugin = \"tensor\"\n[mesh]\ntp = 2\n",
                             "model.layers.0.input_layernorm.weight", " on rank 1 and "}),
    [](const auto& info) { return info.param.name; });

class ReplicaSettings : public DriftingReplicas {};

TEST_P(ReplicaSettings, SayHowOftenTheyAreCompared) {
  const Outcome never = run(1, {"run.replica_check_steps=0", "checkpoint.every_steps=1"});
  EXPECT_EQ(never.exit_code, 0) << never.output;
  const Outcome often = run(1, {"run.replica_check_steps=2", "run.output_dir=often"});
  EXPECT_EQ(often.exit_code, 6) << often.output;
  EXPECT_HAS(often.output, "replicas have drifted apart after step 2: ");
}

INSTANTIATE_TEST_SUITE_P(All, ReplicaSettings,
                         testing::Values(Replicas{"ddp", 2, "[[parallel]]\nplugin = \"ddp\"\n", "model.norm.weight",
                                                  ""}));

class ReplicasThatMayDiffer : public DriftingReplicas {};

// A strategy may let replicas differ for a while, as local steps do until their next sync.
TEST_P(ReplicasThatMayDiffer, AreNotCompared) {
  const Outcome another = run(1, {"checkpoint.every_steps=1", "parallel.0.differ=\"dp_replicate\""});
  EXPECT_EQ(another.exit_code, 6) << another.output;
  EXPECT_HAS(another.output, "replicas have drifted apart after step 2: ");
  const Outcome told = run(1, {"checkpoint.every_steps=1", "parallel.0.differ=\"ep\"", "run.output_dir=told"});
  EXPECT_EQ(told.exit_code, 0) << told.output;
  EXPECT_EQ(told.output.find("have drifted apart"), std::string::npos) << told.output;
}

INSTANTIATE_TEST_SUITE_P(All, ReplicasThatMayDiffer,
                         testing::Values(Replicas{"own_axis", 2,
                                                  "[[parallel]]\nplugin = \"own_axis\"\n[mesh]\nep = 2\n"
                                                  "dp_shard = 1\n",
                                                  "model.norm.weight", ""}));

}  // namespace
}  // namespace chassis::test
