// The unchanged program on two simulated CUDA devices: its numbers are those of the CPU, and faults that would give
// wrong numbers on a GPU are seen. Ranks on two devices use the plugin nccl on fakes of CUDA and NCCL; kernels of
// plugins run on the CPU.
#include <signal.h>

#include "host/base/error.hpp"
#include "tests/regress/simulated_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

class OnOneDevice : public testing::TestWithParam<NamedRun> {};

TEST_P(OnOneDevice, GivesTheNumbersOfTheCpu) { expect_the_numbers_of_the_cpu(GetParam()); }

const Words kOffload = {"parallel.0.offload=cpu"}, kTwoSteps = {"run.max_steps=2"},
            k8Bit = {"optimizer.plugin=adamw8bit_simulated", "optimizer.min_8bit_size=256"};

INSTANTIATE_TEST_SUITE_P(
    Each, OnOneDevice,
    testing::Values(
        NamedRun{"fp32"}, NamedRun{"bf16", {"precision.compute=bf16"}, "", kBf16},
        NamedRun{"recompute_full", {"recompute.mode=full"}},
        NamedRun{"recompute_selective", {"recompute.mode=selective"}},
        NamedRun{"accumulation", {"train.micro_batch_size=3"}},
        NamedRun{"rows_of_several_lengths", {"data.packing=none", "data.overflow=truncate"}},
        NamedRun{"rows_of_several_documents", {"data.packing=best_fit", "train.seq_len=64"}},
        NamedRun{"sgd", {"optimizer.plugin=sgd"}}, NamedRun{"lion", {"optimizer.plugin=lion", "optimizer.lr=1e-4"}},
        NamedRun{"lora", {}, kLoraOfRank4}, NamedRun{"offload", kOffload, kFsdp2},
        NamedRun{"offload_to_pageable_memory", {"parallel.0.offload=cpu", "parallel.0.pin_memory=false"}, kFsdp2},
        NamedRun{"muon_offloaded", {"optimizer.plugin=muon", "parallel.0.offload=cpu"}, kFsdp2},
        NamedRun{"adamw8bit_offloaded", {"optimizer.plugin=adamw8bit", "parallel.0.offload=cpu"}, kFsdp2},
        NamedRun{"adamw8bit", k8Bit}, NamedRun{"four_bits", {}, kFourBits},
        NamedRun{"rms_norm", joined(kTwoSteps, {"kernels.plugins=[\"cuda_rms_norm_simulated\", \"aten\"]"}), "", kFp32,
                 "cuda_rms_norm_simulated"}),
    [](const auto& row) { return row.param.name; });

class OnTwoDevices : public testing::TestWithParam<NamedRun> {};

TEST_P(OnTwoDevices, GivesTheNumbersOfTheCpu) {
  if (!fs::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  expect_the_numbers_of_two_cpu_ranks(GetParam());
}

const std::string kContext = "[[parallel]]\nplugin = \"context\"\n";

INSTANTIATE_TEST_SUITE_P(
    Each, OnTwoDevices,
    testing::Values(NamedRun{"ddp", {}, "[[parallel]]\nplugin = \"ddp\"\n"}, NamedRun{"fsdp2", {}, kFsdp2},
                    NamedRun{"fsdp2_offloaded", kOffload, kFsdp2},
                    NamedRun{"zero_with_prefetch",
                             {},
                             "[[parallel]]\nplugin = \"zero\"\nstage = 3\nstage3_param_persistence_threshold = 0\n"},
                    NamedRun{"tensor", {}, "[[parallel]]\nplugin = \"tensor\"\n"},
                    NamedRun{"context_all_to_all", kTwoSteps, kContext},
                    NamedRun{"context_ring_of_flash_attention",
                             joined(kTwoSteps, {"parallel.0.mode=ring", "precision.compute=bf16"}), kContext, kBf16},
                    NamedRun{"context_of_documents", joined(kTwoSteps, {"parallel.0.mode=gather", "train.seq_len=64"}),
                             kContext},
                    NamedRun{"adamw8bit", k8Bit, kFsdp2}, NamedRun{"four_bits", {}, kFourBits + kFsdp2},
                    NamedRun{"pipeline",
                             {"train.micro_batch_size=3", "train.global_batch_size=12"},
                             "[[parallel]]\nplugin = \"pipeline\"\n"}),
    [](const auto& row) { return row.param.name; });

TEST(SimulatedRuns, ContinueWithTheSameBits) {
  const SimulatedRun run;
  const auto train = [&](const char* steps, const char* name) {
    return run.train("cuda", {"checkpoint.every_steps=2", std::string("run.max_steps=") + steps}, {}, name);
  };
  train("4", "whole");
  train("2", "halves");
  train("4", "halves");
  EXPECT_EQ(run.numbers("halves").losses, run.numbers("whole").losses);
  size_t num_files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(run.folder() / "whole/checkpoints/step-000004")) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string other = run.folder() / "halves" + entry.path().string().substr((run.folder() / "whole").size());
    EXPECT_TRUE(text_of_file(entry.path().string()) == text_of_file(other)) << other;
    ++num_files;
  }
  EXPECT_GE(num_files, 1u);
}

TEST(SimulatedRuns, NeedTheMemoryOfTheirPlan) {
  const SimulatedRun run;
  for (const char* recompute : {"recompute.mode=none", "recompute.mode=full"}) {
    const Numbers measured = run.train("cuda", {recompute}, {}, recompute);
    const Outcome plan =
        run.verb("plan", {"run.toml", "run.device=cuda", "run.output_dir=planned", recompute, "--json"});
    ASSERT_EQ(plan.exit_code, 0) << plan.output;
    const double planned =
        nlohmann::json::parse(plan.output.substr(plan.output.find('{'))).at("ranks").at(0).at("step").at("peak");
    std::printf("| %s | planned %.0f | measured %.0f |\n", recompute, planned, measured.peak_bytes);
    EXPECT_NEAR(measured.peak_bytes / planned, 1.0, 0.1);
  }
}

TEST(SimulatedRuns, EndWhereMemoryEnds) {
  const SimulatedRun run;
  const Outcome early = run.start("cuda", {}, {{"SIMULATED_DEVICE_FAULT", "allocation 3"}});
  EXPECT_EQ(early.exit_code, static_cast<int>(ExitCode::kOutOfMemory)) << early.output;
  EXPECT_HAS(early.output, "CUDA out of memory");
  const Outcome late = run.start("cuda", {}, {{"SIMULATED_DEVICE_FAULT", "allocation 400"}}, "late");
  EXPECT_EQ(late.exit_code, static_cast<int>(ExitCode::kOutOfMemory)) << late.output;
  EXPECT_HAS(late.output, "post-mortem: late/post-mortem/rank-0.json");
}

TEST(SimulatedRuns, AreChosenByAuto) {
  const SimulatedRun run;
  const Outcome outcome = run.start("auto", {"run.max_steps=1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(outcome.output, "Simulated");
}

TEST(SimulatedRuns, RefuseAPluginOfTheCpuByName) {
  const SimulatedRun run("[[parallel]]\nplugin = \"ddp\"\n");
  const Outcome outcome = run.start("cuda", {"comm.plugin=gloo", "--nproc", "2"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_HAS(outcome.output, "gloo serves memory of the CPU; this run is on CUDA: use nccl");
}

// Ranks gather the scales of a whole parameter while they load it.
TEST(SimulatedRuns, LoadABaseWhoseScalesAreQuantizedToo) {
  if (!fs::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  const SimulatedRun run;
  const Outcome made = run.start("cpu", {"run.max_steps=1", "export.when=last"}, {}, "made");
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const Words words = {"model={path=\"made/final\"}",
                       "adapter={plugin=\"lora\", rank=4}",
                       "quant={plugin=\"bnb4_simulated\", double_quant=true}",
                       "parallel=[{plugin=\"fsdp2\"}]",
                       "run.max_steps=2",
                       "--nproc",
                       "2"};
  expect_close({"double_quant"}, run.train("cuda", joined(words, kOnNccl)), run.train("cpu", words));
}

TEST(SimulatedRuns, RefuseDropoutOfAnAdapterByName) {
  const SimulatedRun run(kLoraOfRank4);
  const Words dropout = {"adapter.dropout=0.1"};
  EXPECT_EQ(run.start("cpu", dropout).exit_code, 0);
  const Outcome outcome = run.start("cuda", dropout);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_HAS(outcome.output, "draws the bits of dropout on the CPU only");
}

TEST(SimulatedRuns, Generate) {
  const SimulatedRun run("[tokenizer]\nplugin = \"bytes\"\n");
  const Words model = {"run.toml", "model.config.vocab_size=272", "run.output_dir=made"};
  const auto with = [&](Words words) {
    words.insert(words.begin(), model.begin(), model.end());
    return words;
  };
  ASSERT_EQ(run.verb("train", with({"run.device=cpu", "checkpoint.every_steps=4"})).exit_code, 0);
  const auto answer = [&](const std::string& device) {
    const Outcome outcome = run.verb("generate", with({"run.device=" + device, "--prompt", "the quick",
                                                       "generate.max_new_tokens=21", "generate.temperature=0.0"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_HAS(outcome.output, "the quick");
    return outcome.output.substr(std::min(outcome.output.size(), outcome.output.find("the quick")));
  };
  EXPECT_EQ(answer("cuda"), answer("cpu"));
}

// --- Planted faults ---

// The host reads losses before they are there.
TEST(SimulatedFaults, AMissingWaitOfTheHostChangesTheNumbers) {
  const SimulatedRun run;
  const Numbers right = run.train("cuda", {}, {}, "right");
  EXPECT_EQ(difference(run.train("cuda", {}, {{"SIMULATED_DEVICE_SEED", "2"}}, "again"), right), 0.0);
  const Outcome outcome = run.start("cuda", {}, {{"SIMULATED_DEVICE_FAULT", "host_wait 1"}}, "wrong");
  EXPECT_TRUE(outcome.exit_code != 0 || difference(run.numbers("wrong"), right) > kFp32) << outcome.output;
}

TEST(SimulatedFaults, AMissingWaitOfAStreamChangesTheNumbers) {
  if (!fs::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  const SimulatedRun run(kFsdp2);
  const Words overrides = joined(kOnNccl, {"--nproc", "2"});
  const Numbers right = run.train("cuda", overrides, {}, "right");
  const Outcome outcome = run.start("cuda", overrides, {{"FAKE_CUDA_LOSES_WAITS", "1"}}, "wrong");
  EXPECT_TRUE(outcome.exit_code != 0 || difference(run.numbers("wrong"), right) > kFp32) << outcome.output;
}

TEST(SimulatedFaults, AReadByTheHostEndsTheRunWithTheNameOfThePlugin) {
  const SimulatedRun run;
  const Words overrides = {"optimizer.plugin=host_reading"};
  EXPECT_EQ(run.start("cpu", overrides).exit_code, 0);
  const Outcome outcome = run.start("cuda", overrides);
#ifdef __SANITIZE_ADDRESS__  // it reports the crash and exits
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
#else
  EXPECT_EQ(outcome.exit_code, 128 + SIGSEGV) << outcome.output;
  EXPECT_HAS(outcome.output, "in the code of plugin 'host_reading'");
#endif
}

}  // namespace
}  // namespace chassis::test
