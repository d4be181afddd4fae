// Ranks as threads of the test, each with its own World, and tensors that are sharded in every way that strategies use.
#pragma once

#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "fixture.hpp"
#include "host/launch/store.hpp"
#include "host/launch/world.hpp"
#include "tests/support/comm_ranks.hpp"

namespace chassis::testing {

// The error of each rank, after its exit code, or "".
inline std::vector<std::string> run_ranks(int num_ranks, const std::function<void(World&)>& body) {
  StoreServer server("127.0.0.1", 0);
  std::vector<std::string> errors(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const test::RankEnd end = test::rank_end([&] {
        World world(test::test_launch(rank, num_ranks, server.port()), std::chrono::seconds(30));
        world.set_deadline(std::chrono::seconds(30));
        body(world);
      });
      if (end.failed)
        errors[static_cast<size_t>(rank)] = "[" + std::to_string(static_cast<int>(end.code)) + "] " + end.text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void expect_ranks_pass(int num_ranks, const std::function<void(World&)>& body) {
  const std::vector<std::string> errors = run_ranks(num_ranks, body);
  for (int rank = 0; rank < num_ranks; ++rank) EXPECT_EQ(errors[static_cast<size_t>(rank)], "") << "rank " << rank;
}

// Sizes that no mesh divides evenly; axes dp and tp.
inline Model sharded_model() {
  Model model;
  const auto add = [&](const std::string& fqn, Dtype dtype, const Shape& shape, std::vector<Placement> placements) {
    Descriptor d = Descriptor::plain(fqn, dtype, shape);
    d.placements = std::move(placements);
    model.add(d);
  };
  const Placement tp_rows = Placement::dim_chunk({"tp"}, 0), tp_columns = Placement::dim_chunk({"tp"}, 1),
                  fsdp = Placement::dim_chunk({"dp"}, 0), zero = Placement::flat_range({"dp"});
  Descriptor embed = Descriptor::plain("embed", Dtype::f32, {307, 4});
  embed.padded_shape = {312, 4};
  embed.placements = {tp_rows, fsdp};
  model.add(embed);
  add("column", Dtype::bf16, {16, 6}, {tp_rows, fsdp});
  add("row", Dtype::bf16, {10, 23}, {tp_columns, fsdp});
  add("row_of_zero", Dtype::f32, {9, 11}, {tp_columns, zero});
  add("zero", Dtype::f32, {13, 7}, {zero});
  add("zero_stack", Dtype::f32, {3, 5, 7}, {zero});
  add("norm", Dtype::f32, {11}, {});
  add("few_rows", Dtype::f32, {2, 3}, {fsdp});
  add("step", Dtype::i64, {}, {});
  add("empty", Dtype::f32, {0, 4}, {fsdp});
  add("qkv", Dtype::f32, {24, 3}, {tp_rows, zero});
  Descriptor spread = Descriptor::plain("spread", Dtype::f32, {40});
  spread.owner = OwnerRule::kSpread;
  model.add(spread);
  return model;
}

// Plans as a run does: each rank plans what it writes, and proves its share.
inline SavePlan plan_of_rank(const World& world, std::vector<SaveTensor> tensors, const MeshShape& mesh,
                             const FormatPlugin& format) {
  SavePlanOptions options;
  options.rank = world.rank();
  options.prover = {world.rank(), world.size()};
  return plan_save(std::move(tensors), mesh, format, options);
}

inline void flip_bit(const std::string& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char was = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(was ^ 4));
}

inline MeshShape mesh_of(int dp, int tp) { return MeshShape({{"dp", dp}, {"tp", tp}}); }

}  // namespace chassis::testing
