// Carries out the collectives inside blocks over the groups of the mesh.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/execute/run_context.hpp"
#include "host/service/comm.hpp"

namespace chassis {

class AxisCollectives final : public Collectives {
 public:
  // The communicator must outlive this object.
  explicit AxisCollectives(Communicator& communicator) : communicator_(communicator) {}

  // [step][all-ranks] of the axis. Waits for the result. Parts of an unevenly divided dim are padded: with `call.pad`
  // for comm.slice, else with zeros.
  Tensor run(const CollectiveCall& call, const Tensor& input) override;
  std::unique_ptr<Shift> shift(const std::string& axis, std::vector<Tensor> sent, bool back) override;

 private:
  Tensor all_reduce(ProcessGroup& group, const Tensor& input);
  Tensor all_gather(ProcessGroup& group, int dim, const Tensor& input, bool is_zigzag);
  Tensor gather_shared(ProcessGroup& group, const CollectiveCall& call, const Tensor& input);
  Tensor shared_part(ProcessGroup& group, const CollectiveCall& call, const Tensor& input);
  Tensor reduce_scatter(ProcessGroup& group, int dim, const Tensor& input, bool is_zigzag);
  Tensor all_to_all(ProcessGroup& group, int from, int to, const Tensor& input);
  // Returns the inputs of all ranks, one after another.
  Tensor gather_rows(ProcessGroup& group, const Tensor& input);

  Communicator& communicator_;
};

}  // namespace chassis
