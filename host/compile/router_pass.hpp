// The pass that measures what the routers of experts choose, and adds the losses that balance them: the auxiliary loss
// and the z-loss (Zoph et al. 2022, "ST-MoE"). It runs after the objective pass, so that adapters and layouts see its
// ops. Blocks pass the routers' sums on, so that a loss of all layers needs no values but those between blocks.
#pragma once

#include <optional>
#include <string>

#include "host/base/error.hpp"
#include "host/graph/program.hpp"

namespace chassis {

struct RouterRequest {
  bool measures = false;  // blocks with routers output the sums of router_stats in training
  // Weights of the losses; nullopt: what the model records.
  std::optional<double> aux_weight = 0.0;
  double z_weight = 0.0;
  SourcePosition where = {};  // of the key that asks for a loss, for errors
};

// Throws a config error if a loss is asked for that the program cannot have. Always takes the attributes away that only
// this pass reads.
std::string add_router_losses(Program& program, const RouterRequest& request);

}  // namespace chassis
