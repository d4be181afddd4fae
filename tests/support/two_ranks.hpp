// Two ranks of an axis on two threads of one process, with a real all_reduce.
#pragma once

#include <barrier>
#include <string>

#include "host/base/error.hpp"
#include "host/compile/parameters.hpp"
#include "host/execute/run_context.hpp"

namespace chassis::test {

class ThreadedCollectives final : public Collectives {
 public:
  struct Exchange {
    std::barrier<> barrier{2};
    Tensor parts[2];
  };
  ThreadedCollectives(Exchange& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  Tensor run(const CollectiveCall& call, const Tensor& input) override {
    CHASSIS_CHECK(call.op == CommOp::kAllReduce, std::string(comm_spec(call.op).name));
    meeting_.parts[rank_] = input;
    meeting_.barrier.arrive_and_wait();
    Tensor sum = meeting_.parts[0].clone();
    sum.add(meeting_.parts[1]);
    meeting_.barrier.arrive_and_wait();
    return sum;
  }

 private:
  Exchange& meeting_;
  int rank_;
};

// The shard of a parameter on a rank.
inline Tensor part_of(const Tensor& whole, const Parameter& p, int rank) {
  if (p.descriptor.placements.empty()) return whole;
  const int dim = p.descriptor.placements[0].dim;
  const int64_t size = p.local_shape[static_cast<size_t>(dim)];
  return whole.narrow(dim, size * rank, size).contiguous();
}

}  // namespace chassis::test
