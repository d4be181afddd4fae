// An axis that divides positions: every op reads the positions of its rank, and attention also reads those of other
// ranks (Jacobs et al. 2023, "DeepSpeed Ulysses"; Liu et al. 2023, "Ring Attention"; Llama Team 2024).
#include <algorithm>
#include <map>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/compile/block_layout.hpp"
#include "host/graph/op_table.hpp"

namespace chassis {
namespace {

using Kind = Sharding::Kind;

class ContextLayout final : public BlockLayout {
 public:
  ContextLayout(BlockType& block, const AppliedAxis& axis) : BlockLayout(block, axis) {}

 private:
  bool divides_inputs() const override { return true; }
  bool may_share(DimId) const override { return true; }

  // Slices at the start of the block, so that runs of ops stay together for the patterns of providers.
  void prepare() override {
    for (Op op : recorded_)
      if (!op.spec().is_attention() && op.spec().placement != OpPlacement::kOfRowSums) slice_inputs(op);
  }
  // Labels are padded with the index that the loss ignores; further ids, with any.
  void slice_inputs(Op& op) {
    for (ValueId& input : op.inputs)
      if (input != kAbsent && is_field(input))
        input = slice_time(input, op.spec().reads_labels() ? op.attr_int("ignore_index", -100) : padding_of(input));
  }
  bool is_field(ValueId value) const {
    return block_.values[value].has(CHASSIS_DIM_TIME) &&
           std::ranges::any_of(block_.fields, [&](const auto& field) { return field.second == value; });
  }

  void place(Op op) override {
    if (op.spec().is_attention()) return place_attention(std::move(op));
    if (op.spec().placement == OpPlacement::kOfRowSums) return append(std::move(op), {});
    if (op.attr("long_inv_freq") != nullptr)
      refuse_context(op, "chooses its frequencies by the largest position of a row");
    if (op.spec().is_random) place_random_bits(op);
    if (op.is_own()) prepare_own(op);
    slice_inputs(op);
    if (op.spec().placement == OpPlacement::kLoss) return place_loss(std::move(op));
    if (op.spec().placement == OpPlacement::kRowSums) return append_row_sums(std::move(op), true);
    if (!block_.has_operand_with(op, CHASSIS_DIM_TIME)) return append(std::move(op), {});
    for (const SlotId slot : op.params) mark_partial(block_.slots[slot]);  // each rank has a part of the positions
    if (op.is_own() && !block_.values[op.outputs[0]].has(CHASSIS_DIM_TIME)) return place_loss(std::move(op));
    append(std::move(op), {Kind::kShard, CHASSIS_DIM_TIME});
  }

  // A plugin's own op that does not mix T gets the positions of its rank. Inputs without T are the same on every rank,
  // but each rank has a part of their gradient.
  void prepare_own(Op& op) {
    if (block_.needs_all_of(op, CHASSIS_DIM_TIME))
      throw Error(ExitCode::kConfig, division_.where,
                  (division_.strategy.empty() ? "axis '" : division_.strategy + " along axis '") + strategy_.axis() +
                      "' cannot divide T, the positions, of block '" + block_.name + "': op " + op.id.text() + " '" +
                      op.name + "' " + mixing(op, CHASSIS_DIM_TIME))
          .hint("set " + mesh_key(strategy_.axis()) +
                " = 1; or, if the op computes each position by itself, let the model declare its mixed_dims");
    if (!block_.has_operand_with(op, CHASSIS_DIM_TIME)) return;
    for (ValueId& input : op.inputs) {
      if (input == kAbsent || block_.values[input].has(CHASSIS_DIM_TIME) ||
          block_.values[input].type == GraphValueType::kInt32)
        continue;
      const auto [known, fresh] = copied_.try_emplace(input, 0);
      if (fresh) known->second = insert(CommOp::kCopy, input, {}, 0);
      input = known->second;
    }
  }

  [[noreturn]] void refuse_context(const Op& op, const std::string& why) const {
    throw refusal(op, why).hint("set " + mesh_key(strategy_.axis()) + " = 1");
  }

  // Document ids and prefixes stay those of whole rows.
  void place_attention(Op op) {
    const Sharding positions{Kind::kShard, CHASSIS_DIM_TIME};
    if (division_.context == ContextMode::kRing) {
      op.attrs.emplace_back(kKeyPart, int64_t{1});
      op.attrs.emplace_back(kRing, strategy_.axis());
      return append(std::move(op), positions);
    }
    if (division_.context == ContextMode::kGather) {
      for (size_t i : {1, 2}) op.inputs[i] = converted(op.inputs[i], {});
      mark_query_part(op);
      return append(std::move(op), positions);
    }
    for (size_t i = 0; i < 3; ++i) op.inputs[i] = with_all_positions(op, op.inputs[i], i > 0);
    const ValueId output = op.outputs[0];
    const Sharding heads = of(op.inputs[0]);
    append(std::move(op), heads);
    renamed_[output] = insert(CommOp::kAllToAll, output, positions, heads.dim);
  }

  // All positions of some heads. If ranks share a key-value head, each gathers all heads and continues with its own.
  ValueId with_all_positions(const Op& op, ValueId value, bool may_share) {
    constexpr size_t kHeads = 2;  // index of heads in [B, T, heads, head_dim]
    const DimId heads = block_.values[value].dims[kHeads];
    const int64_t size = program_.dims[heads].size;
    const Sharding placed{Kind::kShard, heads};
    if (size % strategy_.axis_size() == 0) return insert(CommOp::kAllToAll, value, placed, CHASSIS_DIM_TIME);
    if (!may_share || !is_shared(heads))
      throw indivisible(heads, " of '" + op.name + "'")
          .hint("choose a size that divides " + std::to_string(size) + (may_share ? " or is a multiple of it" : "") +
                ", or mode = \"ring\" or \"gather\"");
    return insert(CommOp::kTake, converted(value, {}), placed, heads);
  }

  // Each rank has the sum over its positions; an all_reduce adds these up.
  void place_loss(Op op) {
    const ValueId output = op.outputs[0];
    append(std::move(op), {Kind::kPartial, 0});
    renamed_[output] = insert(CommOp::kAllReduce, output, {}, 0);
  }

  std::map<ValueId, ValueId> copied_;  // inputs of own ops without T
};

}  // namespace

std::unique_ptr<BlockLayout> context_layout(BlockType& block, const AppliedAxis& axis) {
  return std::make_unique<ContextLayout>(block, axis);
}

}  // namespace chassis
