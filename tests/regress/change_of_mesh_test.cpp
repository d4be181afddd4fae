// A run that changes its mesh in the middle ends with the losses and weights of one uninterrupted process. The changes
// are between every two of one process and tensor, context, pipeline and data parallelism.
#include <gtest/gtest.h>

#include "tests/regress/parallel_run.hpp"

namespace chassis::test {
namespace {

struct Mesh {
  Strategy strategy;
  int ranks;
};

std::vector<std::string> two_by_two(int) { return {"mesh.pp=2", "mesh.tp=2"}; }

const std::vector<Mesh>& meshes() {
  static const std::vector<Mesh> all = {{{"alone", {}, no_mesh}, 1},
                                        {{"tensor", {"plugin = \"tensor\""}, no_mesh, 2}, 2},
                                        {{"pipeline", {"plugin = \"pipeline\""}, no_mesh, 2}, 2},
                                        {{"context", {"plugin = \"context\""}, no_mesh, 2}, 2},
                                        {{"fsdp2", {"plugin = \"fsdp2\""}, no_mesh}, 2},
                                        {beside("tensor_pipeline", {"plugin = \"tensor\""},
                                                {"plugin = \"pipeline\"", "schedule = \"zbv\""}, two_by_two, 4),
                                         4}};
  return all;
}

class ChangeOfMesh : public testing::TestWithParam<std::pair<size_t, size_t>> {};

TEST_P(ChangeOfMesh, InMidRunGivesTheNumbersOfOneProcess) {
  const Mesh &from = meshes()[GetParam().first], &to = meshes()[GetParam().second];
  const auto strategy = [](const Mesh& mesh) { return mesh.ranks > 1 ? &mesh.strategy : nullptr; };
  const std::vector<std::string> whole = {"run.max_steps=10"};
  ParallelRun run(Variant::of_bits(0b110000));
  const Result alone = run(nullptr, 1, whole);
  run.output_of(strategy(from), from.ranks, {"run.max_steps=5"});
  const Result ours = run.goes_on(strategy(to), to.ranks, whole);
  ASSERT_EQ(ours.losses.size(), 10u);
  EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
  EXPECT_LE(largest_relative(ours.grad_norms, alone.grad_norms), 1e-5);
  EXPECT_LE(largest_difference(ours.weights, alone.weights), 2e-6);
}

// Changes that have each mesh once before and once after; with `all`, every pair of meshes.
std::vector<std::pair<size_t, size_t>> changes(bool all) {
  std::vector<std::pair<size_t, size_t>> out;
  for (size_t from = 0; from < meshes().size(); ++from)
    for (size_t to = 0; to < meshes().size(); ++to)
      if (all || to == (from + 2) % meshes().size()) out.emplace_back(from, to);
  return out;
}
std::string name_of(const testing::TestParamInfo<std::pair<size_t, size_t>>& info) {
  return std::string(meshes()[info.param.first].strategy.name) + "_to_" + meshes()[info.param.second].strategy.name;
}

INSTANTIATE_TEST_SUITE_P(Some, ChangeOfMesh, testing::ValuesIn(changes(false)), name_of);
INSTANTIATE_TEST_SUITE_P(Matrix, ChangeOfMesh, testing::ValuesIn(changes(true)), name_of);

}  // namespace
}  // namespace chassis::test
