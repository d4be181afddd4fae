// A single rank for parameters that were created without a session: a communicator without a backend, and a stack
// without members.
#pragma once

#include "host/launch/world.hpp"
#include "host/session/ranks.hpp"

namespace chassis::test {

class AloneCommunicator {
 public:
  operator Communicator&() { return communicator_; }

 private:
  World world_;
  Communicator communicator_{nullptr, world_, MeshShape(), 0, Device{}};
};

class OneRank {
 public:
  // `parameters` must be allocated.
  OneRank(const Program& program, ParameterTable& parameters, Device device = {}) {
    stack_.resolve(program, parameters, {});
    stack_.bind(communicator_, device);
  }
  Ranks ranks() { return {stack_, communicator_}; }

 private:
  AloneCommunicator communicator_;
  ParallelStack stack_{{}};
};

}  // namespace chassis::test
