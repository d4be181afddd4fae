// What one rank's optimizer holds: flat vectors of masters, and of each of its states.
#pragma once

#include <map>
#include <optional>

#include "flat.hpp"

namespace zero_import {

inline constexpr size_t kMaxGroups = 10'000;

struct RankState {
  int64_t stage = 0;
  std::vector<Piece> masters;                        // by group
  std::map<std::string, std::vector<Piece>> states;  // by key, then by group; only what every group has
  std::optional<double> step;
  std::optional<double> dynamic_loss_scale;  // of fp16
};

RankState read_rank(const Source& source, uint32_t file, uint32_t rank, size_t num_ranks);

}  // namespace zero_import
