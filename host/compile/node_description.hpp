// A chassis_node_t with the memory that it points to: what claim, infer and create_kernel see of a run of ops.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "chassis/kind/ops.h"
#include "host/compile/layout_pass.hpp"
#include "host/compile/resolved.hpp"

namespace chassis {

class NodeDescription {
 public:
  NodeDescription(const Program& program, const ProgramLayout& layout, const BlockType& block, const Node& node,
                  std::span<const uint8_t> value_needs_grad, std::span<const uint8_t> slot_trainable,
                  const ResolveOptions& options);
  NodeDescription(const NodeDescription&) = delete;

  const chassis_node_t* get() const { return &node_; }

 private:
  uint32_t value_operand(ValueId value);
  uint32_t slot_operand(SlotId slot);
  uint32_t add_operand(std::vector<int64_t> shape, std::vector<std::string> dims, Dtype dtype, bool needs_grad);
  const std::vector<chassis_attr_t>& attrs_of(const Op& op);
  const uint32_t* keep(std::vector<uint32_t> indexes);
  chassis_str_t keep(std::string text);

  const Program& program_;
  const ProgramLayout& layout_;
  const BlockType& block_;
  std::span<const uint8_t> value_needs_grad_, slot_trainable_;
  const ResolveOptions& options_;

  std::vector<uint32_t> value_index_, slot_index_;
  std::deque<chassis_operand_t> operand_store_;
  std::deque<chassis_op_view_t> op_store_;
  std::vector<const chassis_operand_t*> operands_;
  std::vector<const chassis_op_view_t*> ops_;
  std::deque<std::string> texts_;
  std::deque<std::vector<int64_t>> shapes_;
  std::deque<std::vector<chassis_str_t>> names_;
  std::deque<std::vector<chassis_attr_t>> attrs_;
  std::deque<std::vector<uint32_t>> indexes_;
  chassis_node_t node_{};
};

}  // namespace chassis
