// The product and the gradient of its input in bf16 on processors with AMX: parts of the weight are converted from 4
// bits to the layout of the tiles, and stay in the second-level cache of the core that multiplies them.
#pragma once

#include "chassis/host.hpp"
#include "tiles.hpp"
#include "weight.hpp"

namespace bnb4 {

struct TiledProduct {
  // y[m, rows] = x[m, columns] · Wᵀ, or if `back`, y[m, columns] = x[m, rows] · W.
  bool back;
  int64_t m;
  const Bf16* x;
  Bf16* y;
  const Bf16* bias;  // NULL, or of one row of y
  bool add;          // to y
};

// Bytes of workspace for m rows. A call may have more rows, with proportionally more workspace.
int64_t tiled_bytes(int num_threads, int64_t m, int64_t rows, int64_t columns, bool back);
void multiply_tiled(const chassis::Host& host, const Weight& weight, const TiledProduct& p, char* workspace);

}  // namespace bnb4
