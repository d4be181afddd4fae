// Builds nodes in the form of the ABI and calls kernels as the executor does.
#include "tests/support/ops_provider.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn_like.h>
#include <unistd.h>
#include <limits>

#include <filesystem>

#include "host/service/handle.hpp"
#include "host/service/tensor.hpp"

namespace chassis::test {
namespace {

uint32_t dtype_word(c10::ScalarType type) { return static_cast<uint32_t>(dtype_of(type)); }

chassis_str_t str(const std::string& text) { return {text.data(), text.size()}; }

chassis_attr_t raw_attr(const std::string& name, const Attr& attr) {
  chassis_attr_t raw{};
  raw.name = str(name);
  if (const auto* i = std::get_if<int64_t>(&attr)) {
    raw.tag = CHASSIS_ATTR_INT;
    raw.value.i = *i;
  } else if (const auto* f = std::get_if<double>(&attr)) {
    raw.tag = CHASSIS_ATTR_FLOAT;
    raw.value.f = *f;
  } else if (const auto* s = std::get_if<std::string>(&attr)) {
    raw.tag = CHASSIS_ATTR_STRING;
    raw.value.list = {s->data(), s->size()};
  } else {
    const auto& list = std::get<std::vector<double>>(attr);
    raw.tag = CHASSIS_ATTR_FLOAT_LIST;
    raw.value.list = {list.data(), list.size()};
  }
  return raw;
}

std::vector<uint32_t> indexes(const std::vector<int>& operands) {
  std::vector<uint32_t> out;
  for (int operand : operands) out.push_back(operand < 0 ? CHASSIS_ABSENT : static_cast<uint32_t>(operand));
  return out;
}

chassis_tensor_t handle_of(const at::Tensor& tensor) {
  return tensor.defined() ? new_handle(at::Tensor(tensor)) : nullptr;
}

at::Tensor poisoned(const std::vector<int64_t>& sizes, c10::ScalarType dtype) {
  at::Tensor out = at::empty(sizes, at::TensorOptions(dtype));
  return at::isFloatingType(dtype) ? out.fill_(std::nan("")) : out;
}

// Handles that are released at the end of a call.
class Handles {
 public:
  explicit Handles(size_t count) : handles_(std::max<size_t>(count, 1)) {}
  Handles(const Handles&) = delete;
  ~Handles() {
    for (chassis_tensor_t handle : handles_)
      if (handle) Tensor::adopt(handle);
  }
  chassis_tensor_t& operator[](size_t i) { return handles_[i]; }
  chassis_tensor_t* data() { return handles_.data(); }
  at::Tensor tensor(size_t i) const { return handles_[i] ? tensor_of(handles_[i]) : at::Tensor(); }

 private:
  std::vector<chassis_tensor_t> handles_;
};

}  // namespace

int NodeSpec::operand(std::vector<int64_t> sizes, c10::ScalarType dtype, bool needs_grad) {
  operands_.push_back({std::move(sizes), dtype, needs_grad});
  return static_cast<int>(operands_.size()) - 1;
}

std::string NodeSpec::pattern() const {
  std::string out;
  for (const OpSpec& op : ops) out += (out.empty() ? "" : "+") + op.id;
  return out;
}

const chassis_node_t* NodeSpec::raw(bool training) {
  static const std::string dim = "dim";
  raw_operands_.clear();
  dims_.clear();
  for (const Operand& operand : operands_) {
    dims_.emplace_back(operand.sizes.size(), str(dim));
    raw_operands_.push_back({sizeof(chassis_operand_t), dtype_word(operand.dtype),
                             static_cast<uint32_t>(operand.sizes.size()), operand.needs_grad, operand.sizes.data(),
                             nullptr, 0, nullptr, nullptr, nullptr});
  }
  operand_pointers_.clear();
  for (size_t i = 0; i < dims_.size(); ++i) {
    raw_operands_[i].dims = dims_[i].data();
    operand_pointers_.push_back(&raw_operands_[i]);
  }
  raw_parts_.clear();
  raw_ops_.clear();
  op_pointers_.clear();
  for (const OpSpec& op : ops) {
    RawOp& part = raw_parts_.emplace_back();
    for (const auto& [key, attr] : op.attrs) part.attrs.push_back(raw_attr(key, attr));
    part.inputs = indexes(op.inputs);
    part.params = indexes(op.params);
    part.outputs = indexes(op.outputs);
    chassis_op_view_t view{};
    view.struct_size = sizeof view;
    view.id = str(op.id);
    view.attrs = part.attrs.data();
    view.num_attrs = static_cast<uint32_t>(part.attrs.size());
    view.inputs = part.inputs.data();
    view.params = part.params.data();
    view.outputs = part.outputs.data();
    view.num_inputs = static_cast<uint32_t>(part.inputs.size());
    view.num_params = static_cast<uint32_t>(part.params.size());
    view.num_outputs = static_cast<uint32_t>(part.outputs.size());
    op_pointers_.push_back(&raw_ops_.emplace_back(view));
  }
  raw_inputs_ = indexes(inputs);
  raw_params_ = indexes(params);
  raw_outputs_ = indexes(outputs);
  raw_ = {};
  raw_.struct_size = sizeof raw_;
  raw_.flags = training ? CHASSIS_NODE_TRAINING : 0;
  raw_.name = str(name);
  raw_.device_type = device_type;
  raw_.operands = operand_pointers_.data();
  raw_.num_operands = static_cast<uint32_t>(raw_operands_.size());
  raw_.ops = op_pointers_.data();
  raw_.num_ops = static_cast<uint32_t>(raw_ops_.size());
  raw_.inputs = raw_inputs_.data();
  raw_.num_inputs = static_cast<uint32_t>(raw_inputs_.size());
  raw_.params = raw_params_.data();
  raw_.num_params = static_cast<uint32_t>(raw_params_.size());
  raw_.outputs = raw_outputs_.data();
  raw_.num_outputs = static_cast<uint32_t>(raw_outputs_.size());
  return &raw_;
}

OpsProvider::OpsProvider(const std::string& library, const std::string& member, Json options, const std::string& kind) {
  const std::string path = std::string(CHASSIS_TEST_PLUGIN_DIR) + "/" + library + ".so";
  const PluginFile file = read_plugin_file(path);
  LoadPolicy policy;
  policy.cache_folder =
      (std::filesystem::temp_directory_path() / ("chassis-test-" + std::to_string(getpid()))).string();
  check_plugin_file(file, policy, services_);
  auto loaded = std::make_shared<const PluginLibrary>(PluginLibrary::load(file, policy));
  std::filesystem::remove_all(policy.cache_folder);
  InstanceContext context;
  context.plugin_id = file.manifest.id;
  context.kind = kind;
  context.member_id = member.empty() ? library : member;
  context.manifest = &loaded->manifest();
  context.options = std::move(options);
  instance_ = std::make_unique<Instance>(loaded, std::move(context), services_);
  instance_->prepare();
  instance_->activate();
  table_ = &instance_->interface<chassis_ops_t>(CHASSIS_OPS_ID);
}

std::string OpsProvider::refusal(NodeSpec& node) {
  double cost = 0;
  chassis_status_t* status = table_->claim(self(), node.raw(true), &cost);
  if (!status) return "";
  std::string text = status_text(status);
  const bool refused = status_code(status) == CHASSIS_UNIMPLEMENTED;
  status_release(status);
  return refused ? text : "error: " + text;
}

chassis_infer_t OpsProvider::infer(NodeSpec& node, bool training) {
  chassis_infer_t infer{};
  infer.struct_size = sizeof infer;
  check(table_->infer(self(), node.raw(training), &infer));
  return infer;
}

NodeResult OpsProvider::run(NodeSpec& node, const std::vector<at::Tensor>& inputs,
                            const std::vector<at::Tensor>& params, const std::vector<at::Tensor>& grad_outputs,
                            const NodeCall& how) {
  const bool training = how.training && !grad_outputs.empty();
  const chassis_infer_t infer = this->infer(node, training);
  void* kernel = nullptr;
  check(table_->create_kernel(self(), node.raw(training), &kernel));
  struct Guard {
    const OpsProvider& provider;
    void* kernel;
    ~Guard() { provider.table_->destroy_kernel(provider.self(), kernel); }
  } guard{*this, kernel};

  const bool one_call = how.forward_backward && (infer.flags & CHASSIS_KERNEL_FORWARD_BACKWARD);
  Handles in(inputs.size()), par(params.size()), out(node.outputs.size()), saved(infer.num_saved),
      grad_out(node.outputs.size()), grad_in(inputs.size()), grad_par(params.size());
  std::vector<uint8_t> needs(inputs.size() + 1);
  std::vector<float> beta(params.size() + 1);
  for (size_t i = 0; i < inputs.size(); ++i) in[i] = handle_of(inputs[i].defined() ? inputs[i].clone() : at::Tensor());
  for (size_t i = 0; i < params.size(); ++i) par[i] = handle_of(params[i]);
  if (infer.flags & CHASSIS_KERNEL_HOST_OUTPUTS)
    for (size_t i = 0; i < node.outputs.size(); ++i)
      out[i] = handle_of(poisoned(node.sizes(node.outputs[i]), node.dtype(node.outputs[i])));
  if (how.overwrite_input >= 0 && (infer.overwrites_inputs >> how.overwrite_input & 1)) {
    tensor_of(out[0]) = in.tensor(how.overwrite_input).view(node.sizes(node.outputs[0]));
  }
  chassis_call_t call{};
  call.struct_size = sizeof call;
  call.flags = training ? CHASSIS_CALL_TRAINING : 0;
  call.inputs = in.data();
  call.params = par.data();
  call.outputs = out.data();
  call.saved = saved.data();
  call.grad_outputs = grad_out.data();
  call.grad_inputs = grad_in.data();
  call.needs_grad_inputs = needs.data();
  call.grad_params = grad_par.data();
  call.grad_params_beta = beta.data();
  call.query_offset = how.query_offset;
  call.key_offset = how.key_offset;
  call.num_positions = how.num_positions;
  call.random_key = how.random_key;
  call.first_row = how.first_row;

  Handles components(how.components.size());
  for (size_t i = 0; i < how.components.size(); ++i) components[i] = handle_of(how.components[i]);
  std::vector<const chassis_tensor_t*> quantized(params.size() + 1);
  if (!how.components.empty()) quantized[0] = components.data(), call.components = quantized.data();
  at::Tensor workspace;
  const auto with_workspace = [&](uint64_t bytes) {
    if ((infer.flags & CHASSIS_KERNEL_HOST_WORKSPACE) == 0) return;
    workspace = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
    workspace.fill_(0xff);
    call.workspace = workspace.data_ptr();
    call.workspace_bytes = bytes;
  };

  std::vector<at::Tensor> lent(inputs.size()), before(params.size());
  NodeResult result;
  bool any_input = false;
  const auto prepare_backward = [&] {
    for (size_t i = 0; i < grad_outputs.size(); ++i)
      grad_out[i] = handle_of(grad_outputs[i].defined() ? grad_outputs[i].contiguous() : at::Tensor());
    for (size_t i = 0; i < inputs.size(); ++i) {
      needs[i] = node.inputs[i] >= 0 && node.needs_grad(node.inputs[i]);
      any_input |= needs[i] != 0;
      if (needs[i] && how.add_grad_inputs && (infer.flags & CHASSIS_KERNEL_ADDS_GRAD_INPUTS)) {
        // Small, so that its rounding does not hide an error in the gradient.
        lent[i] = at::randn_like(inputs[i]) / 4;
        grad_in[i] = handle_of(lent[i].clone());
      }
    }
    for (size_t i = 0; i < params.size(); ++i) {
      if (!params[i].defined() || !node.needs_grad(node.params[i])) continue;
      const auto wide = params[i].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      beta[i] = how.add_grad_params ? 1.0f : 0.0f;
      before[i] = how.add_grad_params ? at::randn_like(params[i], at::TensorOptions(wide)) : at::Tensor();
      grad_par[i] = handle_of(how.add_grad_params ? before[i].clone() : poisoned(params[i].sizes().vec(), wide));
    }
  };

  with_workspace(infer.workspace_forward_bytes + (one_call ? infer.workspace_backward_bytes : 0));
  if (one_call) {
    prepare_backward();
    check(table_->forward_backward(self(), kernel, &call));
  } else {
    check(table_->forward(self(), kernel, &call));
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) result.outputs.push_back(out.tensor(i).clone());
  if (!training) return result;

  if (!one_call) {
    for (uint32_t i = 0; i < infer.num_saved; ++i) {
      if (!saved[i]) throw std::runtime_error("saved tensor " + std::to_string(i) + " was not made");
      int64_t elements = 1;
      for (uint32_t d = 0; d < infer.saved[i].num_dims; ++d) elements *= infer.saved[i].sizes[d];
      if (saved.tensor(i).numel() != elements || dtype_word(saved.tensor(i).scalar_type()) != infer.saved[i].dtype)
        throw std::runtime_error("saved tensor " + std::to_string(i) + " is not what infer said");
    }
    if (infer.flags & CHASSIS_KERNEL_LOG_SUM) {  // these keys are all keys
      at::Tensor& log_sum = tensor_of(saved[0]);
      log_sum.masked_fill_(log_sum.isinf(), std::numeric_limits<double>::infinity());
    }
    // Release what backward does not keep.
    for (size_t i = 0; i < inputs.size(); ++i)
      if (!(infer.keeps_inputs >> i & 1) && in[i]) Tensor::adopt(std::exchange(in[i], nullptr));
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (!(infer.keeps_outputs >> i & 1)) Tensor::adopt(std::exchange(out[i], nullptr));
    prepare_backward();
    with_workspace(infer.workspace_backward_bytes);
    if (any_input) check(table_->backward_inputs(self(), kernel, &call));
    bool any_param = false;
    for (size_t i = 0; i < params.size(); ++i) any_param |= grad_par[i] != nullptr;
    if (any_param) check(table_->backward_params(self(), kernel, &call));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor gradient = grad_in.tensor(i);
    if (gradient.defined() && lent[i].defined()) gradient = gradient.sub(lent[i]);
    result.grad_inputs.push_back(needs[i] && gradient.defined() ? gradient.clone() : at::Tensor());
  }
  for (size_t i = 0; i < params.size(); ++i) {
    at::Tensor gradient = grad_par.tensor(i);
    if (gradient.defined() && before[i].defined()) gradient = gradient.sub(before[i]);
    result.grad_params.push_back(gradient);
  }
  return result;
}

}  // namespace chassis::test
