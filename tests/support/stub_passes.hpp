// Minimal passes of kinds that no plugin offers yet: a low-rank adapter, a tensor axis and a quant scheme.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/compile/compile.hpp"
#include "host/graph/op_table.hpp"
#include "host/graph/rewrite.hpp"

namespace chassis::test {

inline bool is_linear_of_layer(const BlockType& block, const Op& op) {
  return op.spec().is_linear() && block.slots[op.params[0]].role == CHASSIS_ROLE_WEIGHT;
}

// LoRA: y = W x becomes y = W x + B A x on every linear of the decoder layers. The recorded parameters are frozen.
class LowRankAdapter final : public RewritePass {
 public:
  std::string name() const override { return "low-rank"; }

  void rewrite(Program& program, const Report& report) const override {
    program.dims.push_back({"lora_rank", 4});
    const auto rank = static_cast<DimId>(program.dims.size() - 1);
    for (BlockType& block : program.blocks) {
      for (ParameterSlot& slot : block.slots) slot.frozen = true;
      for (size_t i = 0; i < block.ops.size(); ++i) {
        const Op base = block.ops[i];
        if (!base.spec().is_linear()) continue;
        if (!is_linear_of_layer(block, base)) {
          report(block.name + "." + base.name, "left: it is the head");
          continue;
        }
        add_branch(program, block, i, rank);
        report(block.name + "." + base.name, "adds a branch of rank 4");
        i += 3;
      }
    }
  }

 private:
  static void add_branch(const Program& program, BlockType& block, size_t at, DimId rank) {
    const Op base = block.ops[at];
    const auto axes = block.slots[base.params[0]].axes;
    const auto slot = [&](const char* name, std::vector<std::vector<DimId>> axes, uint32_t init) {
      ParameterSlot added;
      added.name = base.name + name;
      added.axes = std::move(axes);
      added.init = init;
      added.init_std = init == CHASSIS_INIT_NORMAL ? 0.1 : 0.0;
      return block.add_slot(std::move(added));
    };
    const SlotId a = slot(".lora_a.weight", {{rank}, axes[1]}, CHASSIS_INIT_NORMAL);
    const SlotId b = slot(".lora_b.weight", {axes[0], {rank}}, CHASSIS_INIT_ZEROS);
    Op down = make_op(program, block, "linear", base.name + ".lora_a", {base.inputs[0]}, {a}, {rank});
    Op up = make_op(program, block, "linear", base.name + ".lora_b", {down.outputs[0]}, {b}, axes[0]);
    Op sum = make_op(program, block, "add", base.name + ".lora", {base.outputs[0], up.outputs[0]}, {}, {});
    const ValueId result = sum.outputs[0];
    insert_after(block, at, {down, up, sum});
    replace_uses(block, base.outputs[0], result, at + 4);
  }
};

// Divides the named dims by `ways`. With `sequence`, T is divided where they are not; with `ring`, the gathers and
// scatters are rings.
class TensorAxis final : public LayoutStrategy {
 public:
  TensorAxis(int64_t ways, std::set<std::string, std::less<>> dims, bool sequence = false, int64_t coordinate = 0,
             bool ring = false)
      : ways_(ways), dims_(std::move(dims)), sequence_(sequence), ring_(ring), coordinate_(coordinate) {}
  std::string axis() const override { return "tp"; }
  int64_t axis_size() const override { return ways_; }
  int64_t coordinate() const override { return coordinate_; }
  Division divide(const Program&) const override {
    Division division{.sequence_parallel = sequence_, .overlaps_in_ring = ring_};
    for (const std::string& dim : dims_) division.dims.emplace(dim, dim == "vocab");
    return division;
  }

 private:
  int64_t ways_;
  std::set<std::string, std::less<>> dims_;
  bool sequence_, ring_;
  int64_t coordinate_;
};

// Marks the weights of the recorded linears as stored in `scheme`, and renames these ops to `op`, so that only its
// provider claims them. A weight is skipped if its columns are no multiple of `block`.
class QuantScheme final : public RewritePass {
 public:
  explicit QuantScheme(std::string scheme, std::string op = "linear", int64_t block = 1)
      : scheme_(std::move(scheme)), op_(std::move(op)), block_(block) {}
  std::string name() const override { return scheme_; }

  void rewrite(Program& program, const Report& report) const override {
    for (BlockType& block : program.blocks)
      for (Op& op : block.ops) {
        if (!is_linear_of_layer(block, op) || op.name.find("lora") != std::string::npos) continue;
        ParameterSlot& weight = block.slots[op.params[0]];
        const int64_t columns = program.global_shape(weight).back();
        if (columns % block_ != 0) {
          report(block.name + "." + op.name,
                 "left: its " + std::to_string(columns) + " columns are no multiple of " + std::to_string(block_));
          continue;
        }
        weight.storage = scheme_;
        op.id = OpId(op_);
        report(block.name + "." + op.name, "stored as " + scheme_ + ", computed by " + op_);
      }
  }

 private:
  std::string scheme_, op_;
  int64_t block_;
};

}  // namespace chassis::test
