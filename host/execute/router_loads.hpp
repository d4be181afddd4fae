// Sums of what the routers of a rank choose. They are on the device until they are taken.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "host/compile/layout_pass.hpp"
#include "host/graph/program.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

struct RouterLoad {
  size_t unit = 0;
  std::string output;        // "router.sums", or "router.sums.1" of the block's second router
  std::vector<double> sums;  // those of router_stats, over rows: counts, probabilities, squares of log-sums
  double largest = -std::numeric_limits<double>::infinity();  // logit
};

// True if this rank's part of the sums is to be added to those of the other ranks: it has positions of its own, or it
// is the first of the ranks that compute the same.
bool is_own_part(const ProgramLayout& layout, const GraphValue& sums);

class RouterLoads {
 public:
  // [step] Adds what a unit's routers chose in one micro-batch, and removes it from the unit's outputs.
  void add(size_t unit, std::map<std::string, Tensor>& outputs);
  // [step] Returns the sums since the last call, in the order of units; without `sums` where `counts` is false.
  std::vector<RouterLoad> take(const std::function<bool(size_t unit, const std::string& output)>& counts);

 private:
  struct Sums {
    Tensor sums, largest;  // as router_stats makes them, each row added to that of other micro-batches
  };
  std::map<std::pair<size_t, std::string>, Sums> sums_;
};

}  // namespace chassis
