// The collectives that a backend is asked for by comm_conformance.cpp, and what they must give.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chassis/comm.h"
#include "host/service/tensor.hpp"

namespace chassis::comm_cases {

using Values = std::vector<double>;
using Counts = std::vector<uint64_t>;

// A collective that all ranks of a group make.
struct Case {
  uint32_t op = CHASSIS_COMM_BARRIER;
  Dtype dtype = Dtype::f32;
  uint32_t reduce = 0;
  std::vector<Counts> counts;  // [from][to] of ALL_TO_ALL; else counts[0][r] of rank r, or counts[0][0] of all
  bool is_equal = true;        // counts are not told
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
  Tensor buffer, send, recv;  // in place both are parts of buffer
  Values sends;
};

std::vector<Case> all_cases(int size);
Values values_of(const Tensor& tensor);
// What a rank must have in recv; bounds are 0 where every bit counts.
Expected received(const Case& c, int rank, int size, bool rounds_halves);
Prepared prepare(const Case& c, int rank, int size);

}  // namespace chassis::comm_cases
