// Allocates the states of an optimizer, and calls its plugin's step.
#include "host/session/optimizer_driver.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "host/base/error.hpp"
#include "host/service/memory.hpp"
#include "host/service/meta_memory.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

bool is_offloaded(const Parameter* parameter) { return parameter->offloaded; }

}  // namespace

OptimizerDriver::OptimizerDriver(PlacedOptimizer& optimizer, Device device, Communicator& communicator)
    : optimizer_(optimizer), communicator_(communicator), device_(device) {
  require_devices();
  refuse_mixed_offload();
  find_boxes();
  open_rounds();
  allocate_states();
}

OptimizerDriver::OptimizerDriver(PlacedOptimizer& optimizer, Device device, Communicator& communicator,
                                 StatesExist /*exist*/)
    : optimizer_(optimizer), communicator_(communicator), device_(device) {
  require_devices();
  refuse_mixed_offload();
  find_boxes();
  open_rounds();
}

OptimizerDriver::~OptimizerDriver() {
  for (OptimizerState& state : states())
    if (state.parameter->is_here || (state.tensor && state.tensor.num_elements() > 0)) state.tensor.reset();
}

// A plan has no devices to ask about.
void OptimizerDriver::require_devices() const {
  if (!device_.spec().has_memory) return;
  if (!std::ranges::all_of(trained(), is_offloaded)) plugin().require_support(device_);
  if (std::ranges::any_of(trained(), is_offloaded)) plugin().require_support(device_.host());
}

void OptimizerDriver::refuse_mixed_offload() const {
  if (!plugin().sums()) return;
  const auto found = std::ranges::find_if(trained(), is_offloaded);
  if (found != trained().end() && !std::ranges::all_of(trained(), is_offloaded) && device_.host() != device_)
    throw config_error(plugin().label() + " sums over all parameters, but only some of them, such as '" +
                       (*found)->name + "', are stepped in host memory")
        .hint("offload all parameters or none");
}

// A parameter that is not here is not stepped, so its boxes are left out.
void OptimizerDriver::find_boxes() {
  for (const PlacedOptimizer::Placed& placed : optimizer_.placed()) {
    const Parameter& p = placed.parameter();
    std::vector<Box> boxes;
    if (p.is_here) boxes = Layout(placed.descriptor(), table().mesh()).boxes(table().rank());
    facts_.emplace_back(p.name, p.role, p.descriptor.global_shape, boxes);
  }
}

void OptimizerDriver::open_rounds() {
  std::map<const Parameter*, size_t> indices;
  for (size_t i = 0; i < trained().size(); ++i) indices[trained()[i]] = i;
  for (const MatrixRound& round : optimizer_.rounds()) {
    ProcessGroup& group = communicator_.group(std::vector{round.axis});
    Round& opened = rounds_.emplace_back();
    opened.exchange = std::make_unique<MatrixExchange>(communicator_, group, device_, round.matrices);
    const auto rank = static_cast<size_t>(group.rank());
    if (rank < round.matrices.size()) opened.own = indices.at(round.matrices[rank]);
  }
}

void OptimizerDriver::allocate_state(OptimizerState& state, const ParameterTable& table, Device device) {
  const MemoryTag tag(MemoryCategory::kOptimizer);
  const Shape wanted = Layout(state.descriptor, table.mesh()).local_shape(table.rank());
  state.tensor = Tensor::zeros({wanted.begin(), wanted.end()}, state.descriptor.dtype,
                               state.parameter->offloaded ? device.host() : device);
  if (state.shape == CHASSIS_STATE_PER_BLOCK) state.tensor = state.tensor.flat();
  if (state.initial != 0) state.tensor.fill(state.initial);
}

void OptimizerDriver::allocate_states() {
  for (const PlacedOptimizer::Placed& placed : optimizer_.placed())
    for (size_t j = 0; j < placed.trained->states.size(); ++j) {
      OptimizerState& state = states()[placed.first_state + j];
      if (state.tensor && !state.parameter->is_here) continue;  // an earlier driver has left it
      const Shape wanted = Layout(state.descriptor, table().mesh()).local_shape(table().rank());
      const std::vector<int64_t> sizes(wanted.begin(), wanted.end()), shard = state.parameter->shard.sizes();
      if (state.shape == CHASSIS_STATE_LIKE_PARAMETER && placed.owner < 0 && sizes != shard)
        throw internal_error("state '" + state.descriptor.fqn + "' is " + text(Shape(shard)) + " on rank " +
                             std::to_string(table().rank()) + " as its parameter is; its descriptor says " +
                             text(wanted) + " (" + state.descriptor.text() + ")");
      allocate_state(state, table(), device_);
    }
}

void OptimizerDriver::add(OptimizerCall& call, size_t index, chassis_tensor_t param, chassis_tensor_t grad) const {
  const OptimizerSchema::Trained& trained = *optimizer_.placed()[index].trained;
  call.params.push_back(param);
  call.grads.push_back(grad);
  call.facts.push_back(facts_[index].raw());
  call.num_states.push_back(static_cast<uint32_t>(trained.states.size()));
  call.weight_decay.push_back(trained.weight_decay);
  call.lr_scale.push_back(trained.parameter->lr_scale);
  call.counts.push_back(trained.parameter->owned);
}

void OptimizerDriver::step(int64_t step, double lr, double grad_scale) {
  std::vector<Device> devices;  // offloaded shards are stepped where they are
  for (const Parameter* p : trained())
    if (std::find(devices.begin(), devices.end(), p->shard.device()) == devices.end())
      devices.push_back(p->shard.device());
  if (devices.empty() && plugin().sums()) devices.push_back(device_);  // others wait for this rank in the sum
  for (Device device : devices) {
    if (device.type == Device::Type::kMeta)
      rehearse_on(device);
    else
      step_on(device, step, lr, grad_scale);
    step_divided_on(device, step, lr, grad_scale);
  }
}

// A round steps one matrix on each rank of the axis.
void OptimizerDriver::step_divided_on(Device device, int64_t step, double lr, double grad_scale) const {
  for (size_t i = 0; i < rounds_.size(); ++i) {
    const Round& round = rounds_[i];
    const Tensor& shard = optimizer_.rounds()[i].matrices.front()->shard;
    if (shard.num_elements() == 0 || shard.device() != device) continue;  // other ranks have the parts of this class
    const MemoryTag tag(MemoryCategory::kWorkspace);
    const MatrixExchange::Whole whole = round.exchange->collect();
    if (round.own) {
      OptimizerCall call;
      add(call, *round.own, whole.param.handle(), whole.grad.handle());
      const PlacedOptimizer::Placed& own = optimizer_.placed()[*round.own];
      for (size_t j = 0; j < own.trained->states.size(); ++j)
        call.states.push_back(optimizer_.states()[own.first_state + j].tensor.handle());
      if (device.type == Device::Type::kMeta)
        call.workspace(plugin(), device);
      else
        call.run(plugin(), step, lr, grad_scale, device);
    }
    round.exchange->spread(whole.param);
  }
}

// The number of padding elements at the end of a shard of blocks. Statistics of its last block must exclude them.
int64_t OptimizerDriver::block_padding(const Parameter& p) const {
  if (p.descriptor.granularity.kind != Granularity::Kind::kBlock) return 0;
  int64_t elements = 0;
  for (const Box& box : Layout(p.descriptor, table().mesh()).boxes(table().rank())) elements += numel(box);
  return p.shard.num_elements() - elements;
}

void OptimizerDriver::step_on(Device device, int64_t step, double lr, double grad_scale) {
  OptimizerCall call;
  call.communicator = &communicator_;
  std::deque<Tensor> pieces;
  for (size_t i = 0; i < optimizer_.placed().size(); ++i) {
    const PlacedOptimizer::Placed& placed = optimizer_.placed()[i];
    Parameter* p = placed.trained->parameter;
    // A rank may store no element of a small tensor, or of a matrix that another rank owns.
    if (placed.owner >= 0 || p->shard.num_elements() == 0 || p->shard.device() != device) continue;
    const int64_t padding = block_padding(*p);
    if (padding == p->shard.num_elements()) continue;
    Tensor& gradient = p->reduced ? p->reduced : p->gradient;
    if (!p->step_gradient()) {  // no backward wrote one: it counts as zero
      MemoryTag tag(MemoryCategory::kGradients);
      gradient = Tensor::zeros(p->shard.sizes(), Dtype::f32, device);
    }
    const int64_t elements = p->shard.num_elements() - padding;
    const auto first = [&](const Tensor& tensor, int64_t length) {
      const bool cut = padding > 0 && length < tensor.num_elements();
      return cut ? pieces.emplace_back(tensor.flat().narrow(0, 0, length)).handle() : tensor.handle();
    };
    add(call, i, first(p->shard, elements), first(gradient, elements));
    for (size_t j = 0; j < placed.trained->states.size(); ++j) {
      const chassis_state_desc_t& desc = placed.trained->states[j];
      const bool per_block = desc.shape == CHASSIS_STATE_PER_BLOCK;
      const int64_t length = per_block ? (elements + desc.block - 1) / desc.block : elements;
      call.states.push_back(first(states()[placed.first_state + j].tensor, length));
    }
  }
  if (!call.params.empty() || plugin().sums()) call.run(plugin(), step, lr, grad_scale, device);
}

void OptimizerDriver::rehearse_on(Device device) const {
  OptimizerCall call;
  for (size_t i = 0; i < optimizer_.placed().size(); ++i) {
    const PlacedOptimizer::Placed& placed = optimizer_.placed()[i];
    const Tensor& shard = placed.parameter().shard;
    if (placed.owner >= 0 || shard.num_elements() == 0 || shard.device() != device) continue;
    call.params.push_back(shard.handle());
    call.facts.push_back(facts_[i].raw());
  }
  const MemoryTag tag(MemoryCategory::kWorkspace);
  if (!call.params.empty()) call.workspace(plugin(), device);
}

double sum_of_squares(const std::vector<Parameter*>& parameters) {
  double sum = 0.0;
  for (const Parameter* p : parameters) {
    const Tensor gradient = p->owned ? p->step_gradient() : Tensor();
    if (!gradient) continue;
    if (gradient.device().type != Device::Type::kMeta)
      sum += gradient.sum_of_squares();
    else if (gradient.device() != kMetaHost)  // the CPU adds squares block by block, other devices as a tensor
      MemoryCharge(gradient.num_bytes(), MemoryCategory::kOptimizer, gradient.device());
  }
  return sum;
}

}  // namespace chassis
