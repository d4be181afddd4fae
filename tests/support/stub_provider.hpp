// An ops provider for tests: claims what the test chooses, computes nothing, makes tensors of the planned shapes on any
// device, and records the nodes for which it made kernels.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "chassis/plugin.h"
#include "host/compile/resolve.hpp"
#include "host/plugin/status.hpp"

namespace chassis::test {

// A node as the provider sees it.
struct StubNode {
  struct Operand {
    std::vector<int64_t> shape;
    std::vector<std::string> dims;
    Dtype dtype = Dtype::f32;
  };
  std::string name, pattern;
  bool training = false;
  Device device;
  std::vector<Operand> inputs, params, outputs;  // an absent operand has no dims and dtype f32
  std::vector<std::string> attrs;                // from all its ops, "op.attr", with "=value" after texts and integers

  explicit StubNode(const chassis_node_t& node) {
    name = view_of(node.name);
    training = (node.flags & CHASSIS_NODE_TRAINING) != 0;
    device = {static_cast<Device::Type>(node.device_type), node.device_index};
    for (uint32_t i = 0; i < node.num_ops; ++i) {
      const chassis_op_view_t& op = *node.ops[i];
      pattern += (i ? "+" : "") + std::string(view_of(op.id));
      for (uint32_t a = 0; a < op.num_attrs; ++a) {
        std::string text = std::string(view_of(op.id)) + "." + std::string(view_of(op.attrs[a].name));
        if (op.attrs[a].tag == CHASSIS_ATTR_STRING)
          text += "=" + std::string(static_cast<const char*>(op.attrs[a].value.list.ptr), op.attrs[a].value.list.len);
        if (op.attrs[a].tag == CHASSIS_ATTR_INT) text += "=" + std::to_string(op.attrs[a].value.i);
        attrs.push_back(text);
      }
    }
    auto read = [&](const uint32_t* indexes, uint32_t count, std::vector<Operand>& out) {
      for (uint32_t i = 0; i < count; ++i) {
        Operand& operand = out.emplace_back();
        if (indexes[i] == CHASSIS_ABSENT) continue;
        const chassis_operand_t& o = *node.operands[indexes[i]];
        operand.shape.assign(o.local_shape, o.local_shape + o.num_dims);
        for (uint32_t d = 0; d < o.num_dims; ++d) operand.dims.emplace_back(view_of(o.dims[d]));
        operand.dtype = static_cast<Dtype>(o.dtype);
      }
    };
    read(node.inputs, node.num_inputs, inputs);
    read(node.params, node.num_params, params);
    read(node.outputs, node.num_outputs, outputs);
  }

  bool has_attr(const std::string& part) const {
    for (const std::string& attr : attrs)
      if (attr.find(part) != std::string::npos) return true;
    return false;
  }
  // "[2, 8, 4]"
  static std::string text(const std::vector<int64_t>& shape) {
    std::string out = "[";
    for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
    return out + "]";
  }
};

class StubProvider {
 public:
  explicit StubProvider(std::string name, std::vector<std::string> patterns = every_op()) : name_(std::move(name)) {
    texts_ = std::move(patterns);
    for (const std::string& text : texts_) patterns_.push_back(str_of(text));
    instance_.struct_size = sizeof(instance_);
    instance_.impl = this;
    table_.struct_size = sizeof(table_);
    table_.num_patterns = static_cast<uint32_t>(patterns_.size());
    table_.patterns = patterns_.data();
    table_.claim = [](chassis_instance* self, const chassis_node_t* node, double* cost) {
      const std::string reason = of(self).refuse(StubNode(*node));
      *cost = of(self).cost(StubNode(*node));
      return reason.empty() ? nullptr : make_status(CHASSIS_UNIMPLEMENTED, reason);
    };
    table_.infer = [](chassis_instance* self, const chassis_node_t* node, chassis_infer_t* out) {
      return guarded([&] {
        of(self).plan(StubNode(*node), *out);
        if (of(self).writes_inner) out->flags |= CHASSIS_KERNEL_INNER_OUTPUTS;
      });
    };
    table_.create_kernel = [](chassis_instance* self, const chassis_node_t* node, void** kernel) {
      auto* made = new StubNode(*node);
      of(self).nodes.push_back(*made);
      ++of(self).live_kernels;
      *kernel = made;
      return static_cast<chassis_status_t*>(nullptr);
    };
    table_.destroy_kernel = [](chassis_instance* self, void* kernel) {
      --of(self).live_kernels;
      delete static_cast<StubNode*>(kernel);
    };
    table_.forward = [](chassis_instance* self, void* kernel, chassis_call_t* call) {
      return guarded([&] { of(self).forward(*static_cast<StubNode*>(kernel), *call); });
    };
    table_.backward_inputs = [](chassis_instance* self, void* kernel, chassis_call_t* call) {
      return guarded([&] { of(self).backward_inputs(*static_cast<StubNode*>(kernel), *call); });
    };
    table_.backward_params = [](chassis_instance* self, void* kernel, chassis_call_t* call) {
      return guarded([&] { of(self).backward_params(*static_cast<StubNode*>(kernel), *call); });
    };
  }
  StubProvider(const StubProvider&) = delete;
  StubProvider& operator=(const StubProvider&) = delete;

  OpsProvider provider() { return {name_, &instance_, &table_}; }
  // A provider that "auto" compares.
  OpsProvider candidate() { return {.name = name_, .self = &instance_, .table = &table_, .is_candidate = true}; }
  chassis_ops_t& table() { return table_; }

  // The behaviour; a test replaces the functions that it needs.
  std::function<std::string(const StubNode&)> refuse = [](const StubNode&) { return std::string(); };
  std::function<double(const StubNode&)> cost = [](const StubNode&) { return 1.0; };
  std::function<void(const StubNode&, chassis_infer_t&)> plan = [](const StubNode&, chassis_infer_t&) {};
  std::function<void(const StubNode&, chassis_call_t&)> forward = [](const StubNode& node, chassis_call_t& call) {
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (!call.outputs[i])
        call.outputs[i] = Tensor::empty(node.outputs[i].shape, node.outputs[i].dtype, node.device).release();
  };
  std::function<void(const StubNode&, chassis_call_t&)> backward_inputs = [](const StubNode& node,
                                                                             chassis_call_t& call) {
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (call.needs_grad_inputs[i] && !call.grad_inputs[i])
        call.grad_inputs[i] = Tensor::empty(node.inputs[i].shape, node.inputs[i].dtype, node.device).release();
  };
  std::function<void(const StubNode&, chassis_call_t&)> backward_params = [](const StubNode&, chassis_call_t&) {};

  bool writes_inner = true;  // values between the ops of a run that are read elsewhere

  std::vector<StubNode> nodes;  // kernels that were made, in order
  int live_kernels = 0;

  static std::vector<std::string> every_op() {
    return {"embedding",
            "linear",
            "rms_norm",
            "layer_norm",
            "rope",
            "attention",
            "activation",
            "gated_activation",
            "add",
            "mul",
            "reshape",
            "cross_entropy",
            "score",
            "scale",
            "softcap",
            "partial_cross_entropy",
            "total_cross_entropy",
            "token_logp",
            "total_token_logp"};
  }

 private:
  static StubProvider& of(chassis_instance* self) { return *static_cast<StubProvider*>(self->impl); }
  std::string name_;
  std::vector<std::string> texts_;
  std::vector<chassis_str_t> patterns_;
  chassis_instance instance_{};
  chassis_ops_t table_{};
};

}  // namespace chassis::test
