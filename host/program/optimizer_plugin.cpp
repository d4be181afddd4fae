// Calls either version of the interface, and checks the plugin's descriptions of its states.
#include "host/program/optimizer_plugin.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/state/dtype.hpp"

namespace chassis {
namespace {

constexpr uint32_t kMostStates = 64;

}  // namespace

SteppedParameter::SteppedParameter(std::string name, uint32_t role, const Shape& global_shape,
                                   const std::vector<Box>& boxes)
    : name_(std::move(name)),
      global_shape_(global_shape.begin(), global_shape.end()),
      num_boxes_(static_cast<uint32_t>(boxes.size())),
      role_(role) {
  for (const Box& box : boxes) {
    boxes_.insert(boxes_.end(), box.begin.begin(), box.begin.end());
    boxes_.insert(boxes_.end(), box.end.begin(), box.end.end());
  }
}

const chassis_optimizer_parameter_t* SteppedParameter::raw() const {
  raw_ = {sizeof raw_, role_,        str_of(name_), global_shape_.data(), static_cast<uint32_t>(global_shape_.size()),
          num_boxes_,  boxes_.data()};
  return &raw_;
}

bool has_blocks(const chassis_state_desc_t& desc) {
  return desc.granularity == CHASSIS_GRANULARITY_BLOCK || desc.shape == CHASSIS_STATE_PER_BLOCK;
}

OptimizerPlugin::OptimizerPlugin(const Instance& instance)
    : OptimizerPlugin(nullptr, instance.interface_or_null<chassis_optimizer_2_t>(CHASSIS_OPTIMIZER_2_ID),
                      instance.get(), instance.label()) {
  if (second_ != nullptr) {
    instance.require(CHASSIS_OPTIMIZER_2_ID,
                     {{"states", second_->states != nullptr}, {"step", second_->step != nullptr}});
    return;
  }
  first_ = instance.interface_or_null<chassis_optimizer_t>(CHASSIS_OPTIMIZER_ID);
  if (first_ == nullptr) instance.interface<chassis_optimizer_2_t>(CHASSIS_OPTIMIZER_2_ID);  // throws
  instance.require(CHASSIS_OPTIMIZER_ID, {{"num_states", first_->num_states != nullptr},
                                          {"state", first_->state != nullptr},
                                          {"step", first_->step != nullptr}});
}

OptimizerPlugin::OptimizerPlugin(const chassis_optimizer_t* first, const chassis_optimizer_2_t* second,
                                 chassis_instance_t* self, std::string label)
    : first_(first), second_(second), self_(self), label_(std::move(label)), site_(&call_site(label_)) {
  const uint32_t flags = second != nullptr && CHASSIS_HAS(second, flags) ? second->flags : 0;
  if (const uint32_t unknown = flags & ~CHASSIS_OPTIMIZER_SUMS; unknown != 0)
    throw plugin_error(label_ + " sets the flags " + std::to_string(unknown) + ", which this host does not know");
  sums_ = (flags & CHASSIS_OPTIMIZER_SUMS) != 0;
}

std::vector<chassis_state_desc_t> OptimizerPlugin::describe(const SteppedParameter& parameter,
                                                            std::vector<const chassis_state_desc_t*>* described) const {
  const auto refuse_count = [&](uint32_t count) {
    if (count > kMostStates)
      throw plugin_error(label_ + " has " + std::to_string(count) + " states per parameter, at most " +
                         std::to_string(kMostStates));
  };
  std::vector<const chassis_state_desc_t*> found;
  if (second_ != nullptr) {
    const chassis_state_desc_t* states = nullptr;
    uint32_t count = 0;
    const PluginCall call(*site_, "states");
    throw_if_failed(call_plugin([&] { return second_->states(self_, parameter.raw(), &states, &count); }), label_);
    refuse_count(count);
    for (uint32_t i = 0; i < count; ++i) found.push_back(states == nullptr ? nullptr : sized_item(states, i));
  } else {
    const PluginCall call(*site_, "state");
    const uint32_t count = value_of_plugin(label_, [&] { return first_->num_states(self_); });
    refuse_count(count);
    for (uint32_t i = 0; i < count; ++i)
      found.push_back(value_of_plugin(label_, [&] { return first_->state(self_, i); }));
  }
  std::vector<chassis_state_desc_t> out;
  for (size_t i = 0; i < found.size(); ++i)
    out.push_back(read_struct(found[i], label_ + ": the description of state " + std::to_string(i)));
  if (described != nullptr) *described = std::move(found);
  return out;
}

std::vector<chassis_state_desc_t> OptimizerPlugin::states(const SteppedParameter& parameter) const {
  std::vector<chassis_state_desc_t> out = describe(parameter);
  std::set<std::string, std::less<>> roles;
  for (uint32_t i = 0; i < out.size(); ++i) {
    check_state(i, out[i]);
    const std::string role(view_of(out[i].role));
    if (!roles.insert(role).second)
      throw plugin_error(label_ + ": state " + std::to_string(i) + " has the role '" + role + "' of another state");
  }
  return out;
}

// The role becomes part of a name on disk.
void OptimizerPlugin::check_state(uint32_t index, const chassis_state_desc_t& desc) const {
  const auto refuse = [&](const std::string& what) {
    return plugin_error(label_ + ": state " + std::to_string(index) + " " + what);
  };
  if (!desc.role.ptr || desc.role.len == 0 || desc.role.len > 128) throw refuse("has no role, which names it on disk");
  const std::string role(view_of(desc.role));
  const auto is_plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  if (!std::all_of(role.begin(), role.end(), is_plain))
    throw refuse("has the role '" + printable(role) + "', expected letters, digits and '_'");
  const std::string which = "('" + role + "') ";
  if (size_bytes(static_cast<Dtype>(desc.dtype)) == 0)
    throw refuse(which + "has dtype " + std::to_string(desc.dtype) + ", which is not a dtype of the ABI");
  if (desc.shape < CHASSIS_STATE_LIKE_PARAMETER || desc.shape > CHASSIS_STATE_PER_BLOCK)
    throw refuse(which + "has shape " + std::to_string(desc.shape) +
                 ", expected 1 (like the parameter), 2 (scalar) or 3 (per block)");
  if (desc.granularity < CHASSIS_GRANULARITY_ELEMENT || desc.granularity > CHASSIS_GRANULARITY_MATRIX)
    throw refuse(which + "has granularity " + std::to_string(desc.granularity) + ", expected 1, 2 or 3");
  if (has_blocks(desc) && desc.block < 1)
    throw refuse(which + "is cut in blocks of " + std::to_string(desc.block) + " elements, expected at least 1");
  if (!std::isfinite(desc.initial))
    throw refuse(which + "starts at " + std::to_string(desc.initial) + ", expected a finite value");
}

uint64_t OptimizerPlugin::workspace_bytes(const std::vector<const chassis_optimizer_parameter_t*>& parameters,
                                          const std::vector<int64_t>& num_elements) const {
  const PluginCall call(*site_, "workspace_bytes");
  const auto count = static_cast<uint32_t>(parameters.size());
  return value_of_plugin(label_, [&]() -> uint64_t {
    if (second_ != nullptr)
      return second_->workspace_bytes == nullptr ? 0 : second_->workspace_bytes(self_, parameters.data(), count);
    return first_->workspace_bytes == nullptr ? 0 : first_->workspace_bytes(self_, num_elements.data(), count);
  });
}

void OptimizerPlugin::step(const chassis_optimizer_step_t& step) const {
  const PluginCall call(*site_, "step");
  throw_if_failed(
      call_plugin([&] { return second_ != nullptr ? second_->step(self_, &step) : first_->step(self_, &step); }),
      label_);
}

}  // namespace chassis
