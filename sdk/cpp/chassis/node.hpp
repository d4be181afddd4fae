// C++ views of the node that an ops plugin is asked about.
#pragma once

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "chassis/dtype.hpp"
#include "chassis/guard.hpp"
#include "chassis/kind/ops.h"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

class OperandView {
 public:
  explicit OperandView(const chassis_operand_t* operand) : operand_(read_sized(operand)) {}

  uint32_t dtype() const noexcept { return operand_.dtype; }
  bool needs_grad() const noexcept { return operand_.needs_grad != 0; }
  int num_dims() const noexcept { return static_cast<int>(operand_.num_dims); }
  std::span<const int64_t> local_shape() const noexcept { return {operand_.local_shape, operand_.num_dims}; }
  // dim -1 is the last.
  int64_t size(int dim) const { return operand_.local_shape[index(dim)]; }
  std::string_view dim(int dim) const { return text_of(operand_.dims[index(dim)]); }
  int64_t num_elements() const noexcept {
    int64_t n = 1;
    for (int64_t size : local_shape()) n *= size;
    return n;
  }
  // 0 unless the parameter is quantized.
  uint64_t num_components() const noexcept { return operand_.components != nullptr ? operand_.num_components : 0; }
  chassis_component_t component(uint64_t k) const {
    if (k >= num_components())
      throw Failure(CHASSIS_INTERNAL, "component ", k, " of an operand with ", num_components());
    return read_sized(operand_.components[k]);
  }
  // For a quantized parameter that is divided: the sizes of the whole parameter, and where this part begins. Else its
  // own size, and 0.
  int64_t whole_size(int dim) const {
    return operand_.whole_shape != nullptr ? operand_.whole_shape[index(dim)] : size(dim);
  }
  int64_t begin(int dim) const { return operand_.begin != nullptr ? operand_.begin[index(dim)] : 0; }

 private:
  size_t index(int dim) const {
    if (dim < -num_dims() || dim >= num_dims()) {
      throw Failure(CHASSIS_INTERNAL, "dim ", dim, " of an operand with ", num_dims(), " dims");
    }
    return static_cast<size_t>(dim < 0 ? dim + num_dims() : dim);
  }

  chassis_operand_t operand_;
};

// The number of leading dims that two values share. Where a call has other sizes than planned, as of B, T and bounded
// dims, both have the same ones.
inline int num_shared_dims(const OperandView& a, const OperandView& b) {
  int shared = 0;
  while (shared < a.num_dims() && shared < b.num_dims() && a.size(shared) == b.size(shared) &&
         a.dim(shared) == b.dim(shared))
    ++shared;
  return shared;
}

// One recorded op inside a node.
class OpView {
 public:
  // `operands` are those of its node; refuse_attrs_other_than sets *attrs_checked.
  OpView(const chassis_op_view_t* op, const chassis_operand_t* const* operands, bool* attrs_checked = nullptr)
      : op_(read_sized(op)), operands_(operands), attrs_checked_(attrs_checked) {}

  std::string_view id() const noexcept { return text_of(op_.id); }

  int num_inputs() const noexcept { return static_cast<int>(op_.num_inputs); }
  bool has_input(int i) const noexcept { return i < num_inputs() && op_.inputs[i] != CHASSIS_ABSENT; }
  OperandView input(int i) const { return operand(has_input(i) ? op_.inputs[i] : CHASSIS_ABSENT, "input", i); }
  bool has_param(int i) const noexcept {
    return i < static_cast<int>(op_.num_params) && op_.params[i] != CHASSIS_ABSENT;
  }
  OperandView param(int i) const { return operand(has_param(i) ? op_.params[i] : CHASSIS_ABSENT, "param", i); }
  OperandView output(int i) const {
    return operand(i < static_cast<int>(op_.num_outputs) ? op_.outputs[i] : CHASSIS_ABSENT, "output", i);
  }

  uint32_t num_attrs() const noexcept { return op_.num_attrs; }
  bool has_attr(std::string_view name) const noexcept {
    for (uint32_t i = 0; i < op_.num_attrs; ++i)
      if (text_of(op_.attrs[i].name) == name) return true;
    return false;
  }
  // Called by claim() for every op that has attributes: refuses the node if the provider does not know one of them.
  void refuse_attrs_other_than(std::initializer_list<std::string_view> known) const {
    refuse_attrs_other_than(std::span(known.begin(), known.size()));
  }
  void refuse_attrs_other_than(std::span<const std::string_view> known) const {
    if (attrs_checked_ != nullptr) *attrs_checked_ = true;
    for (uint32_t i = 0; i < op_.num_attrs; ++i) {
      const std::string_view name = text_of(op_.attrs[i].name);
      if (std::find(known.begin(), known.end(), name) == known.end()) refuse("attribute '", name, "' is not supported");
    }
  }

  // Attributes: optional with a fallback, else required.
  int64_t attr_int(std::string_view name, int64_t fallback) const {
    const chassis_attr_t* attr = find(name, CHASSIS_ATTR_INT);
    return attr ? attr->value.i : fallback;
  }
  int64_t attr_int(std::string_view name) const { return need(name, CHASSIS_ATTR_INT).value.i; }
  double attr_float(std::string_view name, double fallback) const {
    const chassis_attr_t* attr = find(name, CHASSIS_ATTR_FLOAT);
    return attr ? attr->value.f : fallback;
  }
  double attr_float(std::string_view name) const { return need(name, CHASSIS_ATTR_FLOAT).value.f; }
  std::string_view attr_string(std::string_view name) const {
    const auto& list = need(name, CHASSIS_ATTR_STRING).value.list;
    return {static_cast<const char*>(list.ptr), list.len};
  }
  std::span<const int64_t> attr_ints(std::string_view name) const {
    const auto& list = need(name, CHASSIS_ATTR_INT_LIST).value.list;
    return {static_cast<const int64_t*>(list.ptr), list.len};
  }
  std::span<const double> attr_floats(std::string_view name) const {
    const auto& list = need(name, CHASSIS_ATTR_FLOAT_LIST).value.list;
    return {static_cast<const double*>(list.ptr), list.len};
  }

 private:
  OperandView operand(uint32_t index, const char* what, int i) const {
    if (index == CHASSIS_ABSENT) throw Failure(CHASSIS_INTERNAL, "op ", id(), " has no ", what, " ", i);
    return OperandView(operands_[index]);
  }
  const chassis_attr_t* find(std::string_view name, uint32_t tag) const {
    for (uint32_t i = 0; i < op_.num_attrs; ++i) {
      if (text_of(op_.attrs[i].name) != name) continue;
      if (op_.attrs[i].tag != tag) {
        throw Failure(CHASSIS_INTERNAL, "attribute ", name, " of op ", id(), " has type ", op_.attrs[i].tag,
                      ", expected ", tag);
      }
      return &op_.attrs[i];
    }
    return nullptr;
  }
  const chassis_attr_t& need(std::string_view name, uint32_t tag) const {
    const chassis_attr_t* attr = find(name, tag);
    if (attr == nullptr) throw Failure(CHASSIS_INTERNAL, "op ", id(), " has no attribute ", name);
    return *attr;
  }

  chassis_op_view_t op_;
  const chassis_operand_t* const* operands_;
  bool* attrs_checked_;
};

// One op, or a run of ops that a pattern matched. Operands are those of the node as a whole, in the order of calls.
class NodeView {
 public:
  explicit NodeView(const chassis_node_t* node) : node_(read_sized(node)), attrs_checked_(node_.num_ops) {}

  const chassis_node_t& raw() const noexcept { return node_; }
  std::string_view name() const noexcept { return text_of(node_.name); }
  bool training() const noexcept { return (node_.flags & CHASSIS_NODE_TRAINING) != 0; }
  uint32_t device_type() const noexcept { return node_.device_type; }

  int num_ops() const noexcept { return static_cast<int>(node_.num_ops); }
  OpView op(int i) const {
    if (i < 0 || i >= num_ops()) throw Failure(CHASSIS_INTERNAL, "op ", i, " of a node with ", num_ops());
    return OpView(node_.ops[i], node_.operands, &attrs_checked_[static_cast<size_t>(i)]);
  }
  // The id of the first op with attributes whose refuse_attrs_other_than was not called; "" if there is none.
  std::string unchecked_op() const {
    for (int i = 0; i < num_ops(); ++i)
      if (!attrs_checked_[static_cast<size_t>(i)] && op(i).num_attrs() > 0) return std::string(op(i).id());
    return "";
  }
  // The pattern that it matched: "add+rms_norm".
  std::string pattern() const {
    std::string out;
    for (int i = 0; i < num_ops(); ++i) out += (i ? "+" : "") + std::string(op(i).id());
    return out;
  }

  int num_inputs() const noexcept { return static_cast<int>(node_.num_inputs); }
  int num_params() const noexcept { return static_cast<int>(node_.num_params); }
  int num_outputs() const noexcept { return static_cast<int>(node_.num_outputs); }
  bool has_input(int i) const noexcept { return i < num_inputs() && node_.inputs[i] != CHASSIS_ABSENT; }
  bool has_param(int i) const noexcept { return i < num_params() && node_.params[i] != CHASSIS_ABSENT; }
  OperandView input(int i) const { return operand(has_input(i) ? node_.inputs[i] : CHASSIS_ABSENT, "input", i); }
  OperandView param(int i) const { return operand(has_param(i) ? node_.params[i] : CHASSIS_ABSENT, "param", i); }
  OperandView output(int i) const {
    return operand(i < num_outputs() ? node_.outputs[i] : CHASSIS_ABSENT, "output", i);
  }

 private:
  OperandView operand(uint32_t index, const char* what, int i) const {
    if (index == CHASSIS_ABSENT) throw Failure(CHASSIS_INTERNAL, "node ", name(), " has no ", what, " ", i);
    return OperandView(node_.operands[index]);
  }

  chassis_node_t node_;
  mutable std::deque<bool> attrs_checked_;  // by op
};

CHASSIS_SDK_END
