// An ops plugin loaded for a test, and nodes to run on it without a program around them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "chassis/kind/ops.h"
#include "host/plugin/instance.hpp"
#include "host/service/host_services.hpp"

namespace chassis::test {

using Attr = std::variant<int64_t, double, std::string, std::vector<double>>;
using Attrs = std::map<std::string, Attr>;

struct OpSpec {
  std::string id;
  std::vector<int> inputs;  // operands; -1 is absent
  std::vector<int> params;
  std::vector<int> outputs;
  Attrs attrs;
};

// A node as the host would describe it. Operands are added first; inputs, params and outputs are indexes of them.
class NodeSpec {
 public:
  std::string name = "test";
  std::vector<OpSpec> ops;
  std::vector<int> inputs, params, outputs;  // for the node as a whole; -1 is absent
  uint32_t device_type = CHASSIS_DEVICE_CPU;

  int operand(std::vector<int64_t> sizes, c10::ScalarType dtype, bool needs_grad);
  // Valid until the next call.
  const chassis_node_t* raw(bool training);

  const std::vector<int64_t>& sizes(int operand) const { return operands_[operand].sizes; }
  c10::ScalarType dtype(int operand) const { return operands_[operand].dtype; }
  bool needs_grad(int operand) const { return operands_[operand].needs_grad; }
  std::string pattern() const;

 private:
  struct Operand {
    std::vector<int64_t> sizes;
    c10::ScalarType dtype;
    bool needs_grad;
  };
  struct RawOp {
    std::vector<chassis_attr_t> attrs;
    std::vector<uint32_t> inputs, params, outputs;
  };
  std::vector<Operand> operands_;
  std::vector<chassis_operand_t> raw_operands_;
  std::vector<std::vector<chassis_str_t>> dims_;
  std::deque<RawOp> raw_parts_;
  std::deque<chassis_op_view_t> raw_ops_;
  std::vector<const chassis_operand_t*> operand_pointers_;
  std::vector<const chassis_op_view_t*> op_pointers_;
  std::vector<uint32_t> raw_inputs_, raw_params_, raw_outputs_;
  chassis_node_t raw_{};
};

// Results of a node. Gradients that are not needed are undefined.
struct NodeResult {
  std::vector<at::Tensor> outputs, grad_inputs, grad_params;
};

// How the host may call a kernel; the results must be the same every way.
struct NodeCall {
  bool training = true;
  bool add_grad_inputs = false;   // lend gradients to add to, if the kernel can
  bool add_grad_params = false;   // beta 1
  bool forward_backward = false;  // in one call, if the kernel can
  int overwrite_input = -1;       // output 0 in the memory of this input, if the kernel allows
  int64_t query_offset = 0;
  int64_t key_offset = 0, num_positions = 0;
  uint64_t random_key = 0;
  int64_t first_row = 0;
  std::vector<at::Tensor> components = {};  // for param 0, if it is quantized
};

class OpsProvider {
 public:
  // The library <plugins>/<library>.so, member <kind>/<member>.
  explicit OpsProvider(const std::string& library, const std::string& member = "", Json options = Json::object(),
                       const std::string& kind = "ops");

  // "" if the node is claimed, else the refusal.
  std::string refusal(NodeSpec& node);
  chassis_infer_t infer(NodeSpec& node, bool training = true);
  // Throws the error of the provider. With empty grad_outputs only forward runs.
  NodeResult run(NodeSpec& node, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& params,
                 const std::vector<at::Tensor>& grad_outputs, const NodeCall& how = {});
  int64_t live_tensors() const { return instance_->live_tensors(); }

  // For benchmarks.
  const chassis_ops_t& table() const { return *table_; }
  chassis_instance_t* self() const { return instance_->get(); }
  Instance& instance() const { return *instance_; }
  void check(chassis_status_t* status) const { instance_->check(status); }

 private:
  MetricsStore metrics_;
  HostServices services_{1, metrics_};
  std::unique_ptr<Instance> instance_;
  const chassis_ops_t* table_ = nullptr;
};

}  // namespace chassis::test
