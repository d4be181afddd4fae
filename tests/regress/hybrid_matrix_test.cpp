// Tensor, context and pipeline parallelism with each other and with strategies that divide the batch, each with every
// variant of model and run: the numbers of one process. Prints the table of docs/parallel.md.
#include <gtest/gtest.h>

#include "tests/regress/meshes.hpp"

namespace chassis::test {
namespace {

class HybridMatrix : public testing::TestWithParam<Mesh> {};

TEST_P(HybridMatrix, GivesTheNumbersOfOneProcess) {
  const Mesh& mesh = GetParam();
  std::string row = "| " + std::string(mesh.name) + " | " + std::to_string(mesh.ranks) + " |";
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const Variant variant = Variant::of_bits(kind.variant);
    ParallelRun run(variant, model_of(kind, mesh.layers));
    const Strategy strategy = mesh.strategy();
    const std::vector<std::string> rows = mesh.rows();
    std::vector<std::string> overrides = mesh.axes;
    overrides.insert(overrides.end(), rows.begin(), rows.end());
    const Result alone = run(nullptr, 1, rows);
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
