// Pipeline parallelism with every schedule, alone and with the other strategies: the numbers of one process, counted
// transfers, micro-batches in flight, and what is refused.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "host/state/schedule_csv.hpp"
#include "host/state/schedule_generators.hpp"
#include "tests/regress/parallel_run.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

constexpr const char* kPipeline = "plugin = \"pipeline\"";

std::string schedule(const char* name) { return std::string("schedule = \"") + name + "\""; }

Strategy pipeline(const char* name, const char* order, int ranks = 2) {
  return {name, {kPipeline, schedule(order)}, no_mesh, ranks};
}

std::vector<std::string> two_stages(int) { return {"mesh.pp=2"}; }
std::vector<std::string> two_stages_of_two(int) { return {"mesh.pp=2", "mesh.tp=2"}; }
std::vector<std::string> two_stages_of_two_parts(int) { return {"mesh.pp=2", "mesh.cp=2"}; }

Strategy with(const char* name, const char* order, const std::vector<std::string>& other,
              std::vector<std::string> (*mesh)(int) = two_stages, int same_rows = 2) {
  return beside(name, {kPipeline, schedule(order)}, other, mesh, same_rows);
}

// Every two variants are on together in some row and off together in another; bf16 is on only with tied embeddings and
// accumulation.
std::vector<StrategyRow> rows() {
  const std::vector<std::string> fsdp2 = {"plugin = \"fsdp2\""}, ddp = {"plugin = \"ddp\""},
                                 tensor = {"plugin = \"tensor\""},
                                 sequence = {"plugin = \"tensor\"", "sequence_parallel = true"},
                                 context = {"plugin = \"context\"", "mode = \"gather\""},
                                 zero1 = {"plugin = \"zero\"", "stage = 1"}, zero2 = {"plugin = \"zero\"", "stage = 2"},
                                 zero3 = {"plugin = \"zero\"", "stage3_param_persistence_threshold = 40"},
                                 tensor_fsdp2 = {"plugin = \"tensor\"", "[[parallel]]", "plugin = \"fsdp2\""};
  return {{pipeline("gpipe", "gpipe"), 2, 0b111110},
          {pipeline("1f1b", "1f1b"), 2, 0b000000},
          {pipeline("1f1b", "1f1b"), 2, 0b110001},
          {pipeline("1f1b_4", "1f1b", 4), 4, 0b111100},
          {pipeline("interleaved", "interleaved"), 2, 0b111100},
          {pipeline("zb_h1", "zb_h1"), 2, 0b010010},
          {pipeline("zb_h1", "zb_h1"), 2, 0b111100},
          {pipeline("zbv", "zbv"), 2, 0b111100},
          {with("1f1b_fsdp2", "1f1b", fsdp2), 4, 0b111100},
          {with("1f1b_zero3", "1f1b", zero3), 4, 0b110000},
          {with("zbv_zero3", "zbv", zero3), 4, 0b011000},
          {with("zb_h1_zero2", "zb_h1", zero2), 4, 0b110100},
          {with("interleaved_zero1", "interleaved", zero1), 4, 0b111000},
          {with("interleaved_ddp", "interleaved", ddp), 4, 0b110000},
          {with("1f1b_tensor", "1f1b", tensor, two_stages_of_two, 4), 4, 0b110000},
          {with("zbv_sequence", "zbv", sequence, two_stages_of_two, 4), 4, 0b011000},
          {with("interleaved_context", "interleaved", context, two_stages_of_two_parts, 4), 4, 0b110000},
          {with("1f1b_tensor_fsdp2", "1f1b", tensor_fsdp2, two_stages_of_two, 4), 8, 0b111000}};
}

class PipelineParallel : public testing::TestWithParam<StrategyRow> {};
TEST_P(PipelineParallel, GivesTheNumbersOfOneProcess) { expect_the_numbers_of_one_process(GetParam()); }
INSTANTIATE_TEST_SUITE_P(, PipelineParallel, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name(); });

class PipelineParallelFamilies : public testing::TestWithParam<SmallFamily> {};
INSTANTIATE_TEST_SUITE_P(Distinct, PipelineParallelFamilies, testing::ValuesIn(distinct_families()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Others, PipelineParallelFamilies, testing::ValuesIn(other_families()),
                         [](const auto& info) { return info.param.name; });
TEST_P(PipelineParallelFamilies, GiveTheNumbersOfOneProcess) {
  const Strategy zbv = pipeline("zbv", "zbv");
  const std::vector<std::string> one_row = {"train.micro_batch_size=1"};
  ParallelRun run(Variant::of_bits(0), GetParam().model);
  expect_the_numbers(run(&zbv, 2, one_row), run(nullptr, 1, one_row), false, "zbv of " + GetParam().name);
}

// Eight stages of nine units; 12 micro-batches in groups of 4.
TEST(PipelineParallelInterleaved, OfFourRanksWithTwoChunks) {
  const Strategy strategy = pipeline("interleaved_4", "interleaved", 4);
  const std::string model =
      "plugin = \"llama\"\nconfig = { vocab_size = 96, hidden_size = 48, intermediate_size = 96, num_hidden_layers = "
      "7, "
      "num_attention_heads = 6, num_key_value_heads = 2, initializer_range = 0.1, tie_word_embeddings = true }\n";
  ParallelRun run(Variant::of_bits(0b010000), model);
  expect_the_numbers(run(&strategy, 4), run(nullptr, 1), false, "interleaved, four ranks");
}

TEST(PipelineParallelCsv, RunsTheListsOfAFile) {
  const ScratchDirectory folder;
  write_text(folder / "lists.csv", schedule_csv(zb_h1_schedule(2, 12)));
  const Strategy strategy = {
      "csv", {kPipeline, schedule("csv"), "csv = \"" + (folder / "lists.csv") + "\""}, no_mesh, 2};
  ParallelRun run(Variant::of_bits(0b010000));
  expect_the_numbers(run(&strategy, 2), run(nullptr, 1), false, "csv");
}

// The path of the file is a setting, its lists are not.
TEST(PipelineParallelCsv, ComparesTheListsWithThoseOfTheSavedRun) {
  const ScratchDirectory folder;
  const std::string path = folder / "lists.csv";
  const Strategy strategy = {"csv", {kPipeline, schedule("csv"), "csv = \"" + path + "\""}, no_mesh, 2};
  ParallelRun run(Variant::of_bits(0b010000));
  write_text(path, schedule_csv(zb_h1_schedule(2, 12)));
  run.output_of(&strategy, 2, {"run.max_steps=2"});
  const std::string differs = "differs from the run that was saved: pipeline schedule was sha256:";
  write_text(path, "\n" + schedule_csv(zb_h1_schedule(2, 12)) + "\n");  // the same lists
  const std::string same = run.output_of_rest(&strategy, 2, {"run.max_steps=3", "run.strict=true"});
  EXPECT_EQ(same.find(differs), std::string::npos) << same;
  write_text(path, schedule_csv(one_f_one_b_schedule(2, 12)));
  try {
    run.output_of_rest(&strategy, 2, {"run.max_steps=4", "run.strict=true"});
    ADD_FAILURE() << "run.strict refused nothing";
  } catch (const std::exception& error) {
    EXPECT_HAS(error.what(), "run.strict: 1 settings differ");
    EXPECT_HAS(error.what(), "pipeline schedule was sha256:");
  }
  EXPECT_HAS(run.output_of_rest(&strategy, 2, {"run.max_steps=4"}), differs);
}

std::vector<std::string> own_schedule(const std::string& fault = "none") {
  return {"plugin = \"own_schedule\"", "fault = \"" + fault + "\""};
}

TEST(PipelineParallelOwnSchedule, IsProvenAndRun) {
  const Strategy strategy = {"own", own_schedule(), no_mesh, 2};
  ParallelRun run(Variant::of_bits(0b110000));
  run.add_stub_plugins();
  expect_the_numbers(run(&strategy, 2), run(nullptr, 1), false, "own schedule");
  for (const auto& [fault, error] :
       {std::pair("no backward", "rank 0 has no backward of chunk 0 (stage 0), micro-batch 1"),
        {"backward before forward",
         "entry 1 of rank 1 (forward of chunk 0, micro-batch 1) takes the activations of entry 1 of rank 0"},
        {"unknown work", "entry 0 of rank 0 has the unknown kind of work 9"},
        {"idle rank", "rank 1 of 'pp' has no stage"},
        {"another axis", "axis 'tp' cannot divide stages; 'pp' can"},
        {"no schedule", "layers of stages, but no schedule"},
        {"two schedules", "a second schedule for axis 'pp'"},
        {"rank outside", "stage 1 lies on rank 2 of mesh.pp = 2"},
        {"one micro-batch less", "the schedule has 11 micro-batches, a step of this run has 12"}})
    EXPECT_HAS(refusal_of(run, {"own", own_schedule(fault), no_mesh, 2}, 2), error) << fault;
}

TEST(PipelineParallelStages, MayHaveUnequalLayers) {
  const Strategy strategy = {"given", {kPipeline, "layers_per_stage = [0, 3]"}, no_mesh, 2};
  ParallelRun run(Variant::of_bits(0b110000));
  expect_the_numbers(run(&strategy, 2), run(nullptr, 1), false, "layers [0, 3]");
}

// Ranks of a frozen stage join the gradient norm. The first stage sends nothing back, the last passes gradients on.
TEST(PipelineParallelStages, MayBeFrozen) {
  for (const char* stage : {R"("embed", "layers\\.[01]")", R"("layers\\.[1-9]", "norm", "head")"}) {
    const std::vector<std::string> frozen = {"freeze={ patterns = [" + std::string(stage) + "] }"};
    for (const char* order : {"1f1b", "zb_h1"}) {
      const Strategy alone = pipeline(order, order), fsdp2 = with(order, order, {"plugin = \"fsdp2\""});
      ParallelRun run(Variant::of_bits(0b010000));
      const Result expected = run(nullptr, 1, frozen);
      expect_the_numbers(run(&alone, 2, frozen), expected, false, std::string(stage) + order);
      expect_the_numbers(run(&fsdp2, 4, frozen), expected, false, std::string(stage) + "fsdp2, " + order);
    }
  }
}

// Matrices have one owner among the ranks that divide the batch, in each stage.
TEST(PipelineParallelStages, HaveWholeMatricesForMuon) {
  const std::vector<std::string> muon = {"optimizer={ plugin = \"muon\", lr = 2e-3, weight_decay = 0.1 }"};
  const Strategy fsdp2 = with("fsdp2", "1f1b", {"plugin = \"fsdp2\""});
  ParallelRun run(Variant::of_bits(0b110000));
  expect_the_numbers(run(&fsdp2, 4, muon), run(nullptr, 1, muon), false, "muon");
}

// ---- what is sent, and what is in flight

constexpr int kMicrobatch = 32 * 48 * 4;  // values of one row between two layers

// Each boundary passes the values of every micro-batch forward and their gradients back (research: 2 M per boundary).
TEST(PipelineParallelTraffic, IsOneTransferForEachMicrobatchAndBoundary) {
  ParallelRun run(Variant::of_bits(0b010000));
  const auto sent_by_first_rank = [&](const char* order) {
    const Strategy strategy = pipeline(order, order);
    run(&strategy, 2);
    const auto record = run.first_record();
    EXPECT_EQ(record.at("comm/pp/send_bytes").get<int>(), record.at("comm/pp/send_calls").get<int>() * kMicrobatch);
    EXPECT_EQ(record.at("comm/pp/recv_calls"), record.at("comm/pp/send_calls"));
    return record.at("comm/pp/send_calls").get<int>();
  };
  EXPECT_EQ(sent_by_first_rank("1f1b"), 12) << "values of stage 0";
  EXPECT_EQ(sent_by_first_rank("gpipe"), 12);
  EXPECT_EQ(sent_by_first_rank("zb_h1"), 12);
  EXPECT_EQ(sent_by_first_rank("interleaved"), 12 * 3) << "values of stages 0 and 2, gradients of stage 2";
  EXPECT_EQ(sent_by_first_rank("zbv"), 12 * 2) << "values of stage 0, gradients of stage 3";
}

// Forwards of a unit without their backward, from the log of a run's first step.
int most_in_flight(const std::string& log, const std::string& unit) {
  int now = 0, most = 0;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line) && line.find("step 1/") == std::string::npos;) {
    if (line.ends_with("unit: forward " + unit)) most = std::max(most, ++now);
    if (line.ends_with("unit: backward " + unit)) --now;
  }
  return most;
}

TEST(PipelineParallelMemory, KeepsAsManyMicrobatchesAsTheScheduleSays) {
  for (const auto& [order, first, last] : {std::tuple("gpipe", 12, 12), {"1f1b", 4, 1}, {"zb_h1", 4, 1}}) {
    SCOPED_TRACE(order);
    ParallelRun run(Variant::of_bits(0b010000));
    const Strategy strategy = pipeline(order, order, 4);
    run(&strategy, 4);
    EXPECT_EQ(most_in_flight(run.log(), "embed"), first);
  }
}

// ---- what is refused

std::string refused(const std::vector<std::string>& table, const std::vector<std::string>& overrides = {},
                    int ranks = 2) {
  std::vector<std::string> toml = {kPipeline};
  toml.insert(toml.end(), table.begin(), table.end());
  return refusal(toml, overrides, ranks);
}

TEST(PipelineParallelRefusal, MoreStagesThanUnits) {
  const std::string error = refused({}, {"train.micro_batch_size=1"}, 6);
  EXPECT_HAS(error, "run.toml:");
  EXPECT_HAS(error, "the pipeline has 6 stages, the model has only 5 units to divide");
}

TEST(PipelineParallelRefusal, TooFewMicrobatches) {
  const std::string error = refused({schedule("interleaved"), "group_size = 1"}, {"train.micro_batch_size=1"}, 4);
  EXPECT_HAS(error, "run.toml:");
  EXPECT_HAS(error, "schedule 'interleaved'");
}

TEST(PipelineParallelRefusal, TooManyMicrobatches) {
  EXPECT_HAS(
      refused({}, {"train.micro_batch_size=1", "train.global_batch_size=1000000000"}),
      "schedule '1f1b' would have 1000000000 micro-batches in each of 2 × 1 stages; the maximum is 4194304 in all");
}

TEST(PipelineParallelRefusal, LayersThatDoNotAddUp) {
  EXPECT_HAS(refused({"layers_per_stage = [1, 1]"}), "layers_per_stage adds up to 2 layers, the model has 3");
  EXPECT_HAS(refused({"layers_per_stage = [1, 1, 1]"}), "layers_per_stage has 3 numbers, the pipeline has 2 stages");
}

TEST(PipelineParallelRefusal, LayersThatAreNoNumbersAreReportedOnce) {
  const std::string error = refused({"layers_per_stage = [\"1\", \"2\", \"x\"]"});
  EXPECT_HAS(error,
             "layers_per_stage must be a list of integers; \"1\" is a string, and 2 more items are of other types");
  EXPECT_EQ(error.find("\"2\""), std::string::npos) << error;
}

TEST(PipelineParallelRefusal, TwoOwnersOfTheSchedule) {
  EXPECT_HAS(refused({"[[parallel]]", kPipeline}),
             "the schedule of pipeline stages is given by plugin 'pipeline' 0.1.0 and by plugin 'pipeline' 0.1.0");
}

TEST(PipelineParallelRefusal, OptionsWithoutEffect) {
  EXPECT_HAS(refused({"group_size = 4"}), "group_size has no effect with schedule = \"1f1b\"");
  EXPECT_HAS(refused({"csv = \"lists.csv\""}), "csv has no effect with schedule = \"1f1b\"");
  EXPECT_HAS(refused({schedule("csv")}), "schedule = \"csv\" needs a file");
  EXPECT_HAS(refused({schedule("csv"), "csv = \"no such file\""}), "cannot read 'no such file'");
  EXPECT_HAS(refused({schedule("csv"), "csv = \"/\""}), "'/' is a folder, not a file");
  const ScratchDirectory folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_HAS(refused({schedule("csv"), "csv = \"" + pipe + "\""}), "pipe' is a pipe or a device, not a file");
  EXPECT_HAS(refused({schedule("zbv"), "chunks = 3"}), "zbv");
}

TEST(PipelineParallelRefusal, ListsThatAreWrong) {
  const ScratchDirectory folder;
  const auto refused_list = [&](const std::string& text) {
    write_text(folder / "lists.csv", text);
    return refused({schedule("csv"), "csv = \"" + (folder / "lists.csv") + "\""}, {"train.micro_batch_size=6"});
  };
  EXPECT_HAS(refused_list("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n"),
             "lists.csv:2: rank 1 has no backward of chunk 0 (stage 1), micro-batch 1");
  EXPECT_HAS(refused_list("0F0,0F0,0B0\n1F0,1B0\n"),
             "lists.csv:1:5: rank 0, entry 1: forward of chunk 0, micro-batch 0 repeats entry 0");
  EXPECT_HAS(refused_list("0B0,0F0\n1F0,1B0\n"), "rank");
  EXPECT_HAS(refused_list("0F0,0B0\n1F0,1B0\n"), "1 micro-batches, a step of this run has 2");
  EXPECT_HAS(refused_list("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1\n"), "lists for 3 ranks, mesh.pp is 2");
}

TEST(PipelineParallelWarning, OfAScheduleOnOneRank) {
  const Strategy strategy = {"alone", {kPipeline, schedule("zbv"), "layers_per_stage = [0, 1, 1, 1]"}, no_mesh, 1};
  ParallelRun run(Variant::of_bits(0));
  EXPECT_HAS(run.output_of(&strategy, 1), "a schedule has no effect: mesh.pp is 1");
}

TEST(PipelineParallelRefusal, AnAxisWithoutAStrategy) {
  EXPECT_HAS(refusal({"plugin = \"fsdp2\""}, {"mesh.pp=2"}),
             "mesh.pp = 2, but no strategy of [[parallel]] serves this axis");
}

}  // namespace
}  // namespace chassis::test
