// A single rank for parameters that were created without a session: a stack without members, a communicator without a
// backend.
#pragma once

#include "host/launch/world.hpp"
#include "host/session/ranks.hpp"

namespace chassis::test {

class OneRank {
 public:
  // `parameters` must be allocated.
  OneRank(const Program& program, ParameterTable& parameters, Device device = {}) {
    stack_.resolve(program, parameters, {});
    stack_.bind(communicator_, device);
  }
  Ranks ranks() { return {stack_, communicator_}; }

 private:
  World world_;
  Communicator communicator_{nullptr, world_, MeshShape(), 0, Device{}};
  ParallelStack stack_{{}};
};

}  // namespace chassis::test
