// The optimizer of one rank: flat vectors of the masters and of each state.
#pragma once

#include <map>
#include <optional>

#include "flat.hpp"

namespace zero_import {

inline constexpr size_t kMaxGroups = 10'000;

struct RankState {
  int64_t stage = 0;
  std::vector<Piece> masters;                        // by group
  std::map<std::string, std::vector<Piece>> states;  // by key, then by group; only keys that every group has
  std::optional<double> step;
  std::optional<double> dynamic_loss_scale;  // fp16 only
};

RankState read_rank(const Source& source, uint32_t file, uint32_t rank, size_t num_ranks);

}  // namespace zero_import
