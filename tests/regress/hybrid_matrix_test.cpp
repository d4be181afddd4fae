// Tensor, context and pipeline parallelism with each other and with strategies that divide the batch, each with every
// variant of model and run: the numbers of one process. Prints the table of docs/parallel.md.
#include <gtest/gtest.h>

#include "tests/regress/parallel_run.hpp"

namespace chassis::test {
namespace {

struct Mesh {
  const char* name;
  int ranks;
  int same_rows;  // ranks that compute the same rows
  std::vector<std::string> toml;
  std::vector<std::string> axes = {};
  int layers = 3;
};

std::vector<Mesh> meshes() {
  const std::string tensor = "plugin = \"tensor\"", sequence = "sequence_parallel = true",
                    context = "plugin = \"context\"", pipeline = "plugin = \"pipeline\"", next = "[[parallel]]",
                    fsdp2 = "plugin = \"fsdp2\"", zero3 = "plugin = \"zero\"";
  const auto order = [](const char* name) { return std::string("schedule = \"") + name + "\""; };
  return {{"tp", 2, 2, {tensor}},
          {"tp, sequence_parallel", 2, 2, {tensor, sequence}},
          {"cp, all_to_all", 2, 2, {context}},
          {"cp, gather", 2, 2, {context, "mode = \"gather\""}},
          {"cp, ring", 2, 2, {context, "mode = \"ring\""}},
          {"pp, gpipe", 2, 2, {pipeline, order("gpipe")}},
          {"pp, 1f1b", 2, 2, {pipeline}},
          {"pp, interleaved", 2, 2, {pipeline, order("interleaved")}},
          {"pp, zb_h1", 2, 2, {pipeline, order("zb_h1")}},
          {"pp, zbv", 2, 2, {pipeline, order("zbv")}},
          {"pp, interleaved", 4, 4, {pipeline, order("interleaved")}, {}, 7},
          {"tp × pp", 4, 4, {tensor, next, pipeline}, {"mesh.tp=2", "mesh.pp=2"}},
          {"tp × cp, ring", 4, 4, {tensor, next, context, "mode = \"ring\""}, {"mesh.tp=2", "mesh.cp=2"}},
          {"tp × fsdp2", 4, 2, {tensor, next, fsdp2}, {"mesh.tp=2"}},
          {"cp × fsdp2", 4, 2, {context, next, fsdp2}, {"mesh.cp=2"}},
          {"pp × fsdp2", 4, 2, {pipeline, next, fsdp2}, {"mesh.pp=2"}},
          {"pp × zero 3", 4, 2, {pipeline, order("zbv"), next, zero3}, {"mesh.pp=2"}},
          {"tp × pp × fsdp2", 8, 4, {tensor, sequence, next, pipeline, next, fsdp2}, {"mesh.tp=2", "mesh.pp=2"}}};
}

struct Kind {
  const char* name;
  unsigned variant;
  bool tied = false;
  int heads = 4, key_value_heads = 2, vocab = 96;
};
constexpr Kind kKinds[] = {{"plain", 0},
                           {"tied", 0, true},
                           {"one kv head", 0, false, 4, 1},
                           {"uneven vocabulary", 0, true, 4, 2, 101},
                           {"accumulation", 0b010000},
                           {"recompute", 0b001000},
                           {"frozen", 0b000100},
                           {"bf16", 0b000001}};

std::string model_of(const Kind& kind, int layers) {
  return "plugin = \"llama\"\nconfig = { vocab_size = " + std::to_string(kind.vocab) +
         ", hidden_size = 48, intermediate_size = 96, num_hidden_layers = " + std::to_string(layers) +
         ", num_attention_heads = " + std::to_string(kind.heads) +
         ", num_key_value_heads = " + std::to_string(kind.key_value_heads) +
         ", attention_bias = true, initializer_range = 0.1, tie_word_embeddings = " + (kind.tied ? "true" : "false") +
         " }\n";
}

class HybridMatrix : public testing::TestWithParam<Mesh> {};

TEST_P(HybridMatrix, GivesTheNumbersOfOneProcess) {
  const Mesh& mesh = GetParam();
  std::string row = "| " + std::string(mesh.name) + " | " + std::to_string(mesh.ranks) + " |";
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const Variant variant = Variant::of_bits(kind.variant);
    ParallelRun run(variant, model_of(kind, mesh.layers));
    const Strategy strategy = {mesh.name, mesh.toml, no_mesh, mesh.same_rows};
    // Schedules of several chunks need several micro-batches.
    std::vector<std::string> overrides = mesh.axes;
    const bool is_pipeline = std::string(mesh.name).find("pp") != std::string::npos;
    const std::vector<std::string> rows = {"train.micro_batch_size=1"};
    if (is_pipeline) overrides.insert(overrides.end(), rows.begin(), rows.end());
    const Result alone = run(nullptr, 1, is_pipeline ? rows : std::vector<std::string>{});
    const Result ours = run(&strategy, mesh.ranks, overrides);
    expect_the_numbers(ours, alone, variant.bf16, std::string(mesh.name) + ", " + kind.name);
    char cell[64];
    std::snprintf(cell, sizeof cell, " %.0e / %.0e |", largest_relative(ours.losses, alone.losses),
                  largest_difference(ours.weights, alone.weights));
    row += cell;
  }
  std::printf("row: %s\n", row.c_str());
}

INSTANTIATE_TEST_SUITE_P(, HybridMatrix, testing::ValuesIn(meshes()), [](const auto& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.name + "_on_" + std::to_string(info.param.ranks);
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_'; });
  return name;
});

}  // namespace
}  // namespace chassis::test
