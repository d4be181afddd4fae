// Checks the plugin's descriptions of its states.
#include "host/execute/optimizer_plugin.hpp"

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
constexpr uint64_t kMostWorkspaceBytes = uint64_t{1} << 46;

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
    : OptimizerPlugin(instance.interface<chassis_optimizer_t>(CHASSIS_OPTIMIZER_ID), instance.get(), instance.label()) {
  instance.require(CHASSIS_OPTIMIZER_ID, {{"states", table_->states != nullptr}, {"step", table_->step != nullptr}});
}

OptimizerPlugin::OptimizerPlugin(const chassis_optimizer_t& table, chassis_instance_t* self, std::string label)
    : table_(&table), self_(self), label_(std::move(label)), site_(&call_site(label_)) {
  if (const uint32_t unknown = table.flags & ~CHASSIS_OPTIMIZER_SUMS; unknown != 0)
    throw plugin_error(label_ + " sets the flags " + std::to_string(unknown) + ", which this host does not know");
}

void OptimizerPlugin::require_support(Device device) const {
  if (table_->supports == nullptr) return;
  const PluginCall call(*site_, "supports");
  throw_if_failed(
      call_plugin([&] { return table_->supports(self_, static_cast<uint32_t>(device.type), device.index); }), label_);
}

std::vector<chassis_state_desc_t> OptimizerPlugin::describe(const SteppedParameter& parameter,
                                                            std::vector<const chassis_state_desc_t*>* described) const {
  std::vector<const chassis_state_desc_t*> found;
  const chassis_state_desc_t* states = nullptr;
  uint32_t count = 0;
  {
    const PluginCall call(*site_, "states");
    throw_if_failed(call_plugin([&] { return table_->states(self_, parameter.raw(), &states, &count); }), label_);
  }
  if (count > kMostStates)
    throw plugin_error(label_ + " has " + std::to_string(count) + " states per parameter, at most " +
                       std::to_string(kMostStates));
  for (uint32_t i = 0; i < count; ++i) found.push_back(states == nullptr ? nullptr : sized_item(states, i));
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

uint64_t OptimizerPlugin::workspace_bytes(const std::vector<const chassis_optimizer_parameter_t*>& parameters) const {
  const PluginCall call(*site_, "workspace_bytes");
  const auto count = static_cast<uint32_t>(parameters.size());
  const uint64_t bytes = value_of_plugin(label_, [&]() -> uint64_t {
    return table_->workspace_bytes == nullptr ? 0 : table_->workspace_bytes(self_, parameters.data(), count);
  });
  if (bytes > kMostWorkspaceBytes)
    throw plugin_error(label_ + ": workspace_bytes asks for " + std::to_string(bytes) + " bytes for " +
                       std::to_string(count) + " parameters, at most " + std::to_string(kMostWorkspaceBytes));
  return bytes;
}

void OptimizerPlugin::step(const chassis_optimizer_step_t& step) const {
  const PluginCall call(*site_, "step");
  throw_if_failed(call_plugin([&] { return table_->step(self_, &step); }), label_);
}

}  // namespace chassis
