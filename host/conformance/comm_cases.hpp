// The collectives that comm.cpp starts, and their expected results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chassis/comm.h"
#include "host/service/tensor.hpp"

namespace chassis::comm_cases {

using Values = std::vector<double>;
using Counts = std::vector<uint64_t>;

// A collective, called by all ranks of a group.
struct Case {
  uint32_t op = CHASSIS_COMM_BARRIER;
  Dtype dtype = Dtype::f32;
  uint32_t reduce = 0;
  std::vector<Counts> counts;  // ALL_TO_ALL: [from][to]; else counts[0][r] for rank r, or counts[0][0] for all
  bool is_equal = true;        // the call has one count instead of counts
  bool in_place = false;
  int peer = 0;

  std::string text(int size) const;
};

struct Expected {
  Values values, bounds;
};

// One rank's calls of a case, with their buffers.
struct Prepared {
  std::vector<chassis_collective_t> calls;
  Counts counts, recv_counts;
  Tensor buffer, send, recv;  // in place: send and recv are parts of buffer
  Values sends;
};

std::vector<Case> all_cases(int size);
Values values_of(const Tensor& tensor);
// Expected content of a rank's recv buffer; a bound of 0 means exact.
Expected received(const Case& c, int rank, int size, bool rounds_halves);
Prepared prepare(const Case& c, int rank, int size);

}  // namespace chassis::comm_cases
