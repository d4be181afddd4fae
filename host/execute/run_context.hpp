// The state of running a block: the fields and sizes of a micro-batch, collectives, random bits, and the frame
// of tensors between forward and backward.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/compile/layout_pass.hpp"
#include "host/compile/parameters.hpp"
#include "host/compile/resolve.hpp"
#include "host/execute/backend.hpp"
#include "host/execute/kv_cache.hpp"
#include "host/service/trace.hpp"

namespace chassis {

// The fields of a micro-batch, by name; see host/data/batch.hpp.
using Fields = std::map<std::string, Tensor>;

// A collective that the layout pass inserted, or the dual of one, with the op's attributes.
struct CollectiveCall {
  CommOp op = CommOp::kNone;
  std::string axis;
  int dim = 0;
  int to = 0;        // for comm.all_to_all
  double pad = 0.0;  // for comm.slice
  bool is_zigzag = false;
  int64_t sharers = 1;       // for comm.gather and comm.split
  bool of_gradient = false;  // true in backward
};

// Tensors in transit from each rank of an axis to its neighbour.
class Shift {
 public:
  virtual ~Shift() = default;
  // Waits for the tensors that the neighbour has sent, and returns them. Call it once.
  virtual std::vector<Tensor> take() = 0;
};

// [step] Carries out collectives.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual Tensor run(const CollectiveCall& call, const Tensor& input) = 0;
  // Sends to the next rank around the axis, or to the previous one if `back`, and does not wait.
  virtual std::unique_ptr<Shift> shift(const std::string& axis, std::vector<Tensor> sent, bool back = false) {
    (void)sent, (void)back;
    throw internal_error("these collectives have no ring for axis '" + axis + "'");
  }
};

// The key of a step's random bits, and the index in the step of a micro-batch's first row. Bits depend on nothing else.
struct RandomBits {
  uint64_t key = 0;
  int64_t first_row = 0;
};

struct RunContext {
  const Backend* backend = nullptr;
  const Program* program = nullptr;
  const ProgramLayout* layout = nullptr;
  const ResolveOptions* options = nullptr;
  const std::vector<Parameter*>* parameters = nullptr;  // by slot
  Collectives* collectives = nullptr;
  KeyValueCaches caches = {};
  size_t unit = 0;
  DimSizes sizes = {};  // of this micro-batch
  double loss_scale = 1.0;
  RandomBits random = {};
  Trace* trace = nullptr;
  int microbatch = 0;

  Device device() const { return backend->device(); }
  // The cache of the only row; NULL without caches. BlockRun gives attention one row at a time.
  KeyValueCache* cache() const { return caches.empty() ? nullptr : caches.front(); }
  // The value's shape in this micro-batch.
  std::vector<int64_t> local_shape(const GraphValue& value) const {
    return layout->local_shape(*program, value, sizes);
  }
};

// The tensors from which the gradients of a node's parameters are computed, if that is done later.
struct DeferredParams {
  size_t node = 0;
  std::vector<Tensor> inputs, outputs, saved, grad_outputs;  // as in chassis_call_t; empty: NULL
};

// The tensors that a forward pass keeps for its backward pass.
struct Frame {
  std::vector<Tensor> values;              // by ValueId; empty after a value is dropped
  std::vector<std::vector<Tensor>> saved;  // by node
  std::vector<Tensor> gradients;           // by ValueId
  std::vector<uint8_t> done;               // by node: its forward already computed its gradients
  std::vector<DeferredParams> deferred;    // set by run_backward_inputs, in the order of their computation
  // Outputs of nodes that choose, by node: the first forward sets them, and a repeated one takes them.
  std::map<size_t, Tensor> choices;

  uint64_t num_bytes() const;
};

}  // namespace chassis
