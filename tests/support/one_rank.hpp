// A single rank for parameters that were created without a session: a communicator without a backend, and a stack
// without strategies.
#pragma once

#include <memory>
#include <vector>

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
  OneRank(const Program& program, ParameterTable& parameters, Device device = {})
      : plan_(std::make_shared<Strategies>(std::vector<StackMember>()), program, parameters, {}),
        events_(plan_, parameters, communicator_, device) {}
  Ranks ranks() { return {plan_, communicator_, &events_}; }

 private:
  AloneCommunicator communicator_;
  StackPlan plan_;
  StackEvents events_;
};

}  // namespace chassis::test
