// Strategies that divide the batch, and the rows in which every pair of variants of model and run is combined.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/regress/parallel_run.hpp"

namespace chassis::test {

inline std::vector<std::string> replicas(int ranks) {
  return {"mesh.dp_replicate=" + std::to_string(ranks == 4 ? 2 : ranks), "mesh.dp_shard=-1"};
}

inline const std::vector<Strategy> kBatchStrategies = {
    {"ddp", {"plugin = \"ddp\""}, no_mesh},
    {"fsdp2", {"plugin = \"fsdp2\"", "forward_prefetch = 1", "backward_prefetch = 1"}, no_mesh},
    {"hsdp", {"plugin = \"fsdp2\""}, replicas},
    {"zero1", {"plugin = \"zero\"", "stage = 1"}, no_mesh},
    {"zero2", {"plugin = \"zero\"", "stage = 2", "reduce_bucket_size = 2000"}, no_mesh},
    {"zero3",
     {"plugin = \"zero\"", "stage3_param_persistence_threshold = 40", "overlap_comm = \"true\"",
      "stage3_max_reuse_distance = 5000"},
     no_mesh},
    {"fsdp2_offload", {"plugin = \"fsdp2\"", "offload = \"cpu\"", "reduce_every_microbatch = false"}, no_mesh},
    {"zero3_offload",
     {"plugin = \"zero\"", "offload_optimizer_device = \"cpu\"", "offload_param_device = \"cpu\"",
      "offload_optimizer_fraction = 0.5"},
     no_mesh},
};

struct BatchRow {
  size_t strategy;
  int ranks;
  unsigned variant;
  std::string name() const {
    return std::string(kBatchStrategies[strategy].name) + "_on_" + std::to_string(ranks) + "_" +
           Variant::of_bits(variant).name();
  }
  friend void PrintTo(const BatchRow& row, std::ostream* out) { *out << row.name(); }
};

// Every strategy on 2, 3 and 4 ranks. Each variant is on in some rows and off in others, for every strategy, every
// number of ranks and both states of every other variant.
inline constexpr std::array<unsigned, 24> kVariants = {0b010111, 0b101010, 0b100100, 0b000011, 0b100010, 0b011101,
                                                       0b100000, 0b110111, 0b001000, 0b001000, 0b111100, 0b010011,
                                                       0b001101, 0b100001, 0b110110, 0b101110, 0b111110, 0b000001,
                                                       0b101100, 0b010011, 0b100110, 0b110110, 0b110010, 0b001101};

inline std::vector<BatchRow> pairwise_rows() {
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < kVariants.size(); ++i) rows.push_back({i / 3, static_cast<int>(2 + i % 3), kVariants[i]});
  return rows;
}

}  // namespace chassis::test
