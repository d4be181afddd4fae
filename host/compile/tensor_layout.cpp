// An axis that divides named dims: column and row linears, the vocabulary, heads (Shoeybi et al. 2019, "Megatron-LM"),
// and between them the positions (Korthikanti et al. 2022).
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/block_layout.hpp"
#include "host/compile/ring_layout.hpp"
#include "host/graph/op_table.hpp"

namespace chassis {
namespace {

using Kind = Sharding::Kind;

bool contains(const std::vector<DimId>& dims, DimId dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

class TensorLayout final : public BlockLayout {
 public:
  TensorLayout(BlockType& block, const AppliedAxis& axis) : BlockLayout(block, axis) {}
  size_t adapter_linears_without_ring() const override { return adapter_linears_without_ring_; }

 private:
  bool divides_inputs() const override { return division_.sequence_parallel; }
  bool may_share(DimId dim) const override { return divides(dim) && !pads(dim); }

  void place(Op op) override {
    if (op.is_collective()) expect_even_division(op);
    switch (op.spec().placement) {
      case OpPlacement::kOwn:
        return place_own(std::move(op));
      case OpPlacement::kLinear:
        return place_linear(std::move(op));
      case OpPlacement::kEmbedding:
        return place_embedding(std::move(op));
      case OpPlacement::kAttention:
        return place_attention(std::move(op));
      case OpPlacement::kLoss:
        return place_loss(std::move(op), "total_cross_entropy");
      case OpPlacement::kTokenLogp:
        return place_loss(std::move(op), "total_token_logp");
      case OpPlacement::kTopkLogp:
        return place_loss(std::move(op), "total_topk_logp");
      case OpPlacement::kChannelScale:
        return place_channel_scale(std::move(op));
      case OpPlacement::kConcat:
        return place_concat(std::move(op));
      case OpPlacement::kDispatch:
        return place_dispatch(std::move(op));
      case OpPlacement::kGroupedLinear:
        return place_grouped_linear(std::move(op));
      case OpPlacement::kCombine:
        return place_combine(std::move(op));
      case OpPlacement::kRowSums:
        return place_row_sums(std::move(op));
      case OpPlacement::kOfRowSums:
        return append(std::move(op), {});
      case OpPlacement::kPointwise:
      case OpPlacement::kNone:
        break;
    }
    if (op.spec().is_random) place_random_bits(op);
    if (op.spec().is_view) return place_view(std::move(op));
    place_pointwise(std::move(op));
  }

  [[noreturn]] void refuse_undivided(const Op& op, DimId dim) const {
    refuse(op, "needs all of '" + program_.dims[dim].name + "' on each rank, but its input is divided along it");
  }

  // The output dim of a linear that ranks share; nothing if there is none.
  std::optional<DimId> shared_output(const ParameterSlot& weight) const {
    const std::vector<DimId>& outputs = weight.axes[0];
    const auto found = std::find_if(outputs.begin(), outputs.end(), [&](DimId dim) { return is_shared(dim); });
    return found == outputs.end() ? std::nullopt : std::optional(*found);
  }

  // The input of a column-divided linear: whole in forward, its gradients summed over the axis in backward.
  ValueId column_input(ValueId value) {
    if (of(value).kind == Kind::kShard) return converted(value, {});  // gather; its backward reduces
    auto [known, fresh] = entered_.try_emplace(value, 0);
    if (fresh) known->second = insert(CommOp::kCopy, value, {}, 0);
    return known->second;
  }

  void place_linear(Op op) {
    const ParameterSlot& weight = block_.slots[op.params[0]];
    const Sharding placed = weight.sharding[axis_];
    if (is_column(op) && of(op.inputs[0]) == Sharding{Kind::kShard, CHASSIS_DIM_TIME} && has_ring(op))
      return place_gathering_ring(op.inputs[0]);
    if (const auto shared = shared_output(weight)) return place_shared_linear(std::move(op), *shared);
    if (placed.kind != Kind::kShard) return place_pointwise(std::move(op));
    if (contains(weight.axes[0], placed.dim)) {
      op.inputs[0] = column_input(op.inputs[0]);
      return append(std::move(op), {Kind::kShard, placed.dim});
    }
    if (of(op.inputs[0]) != placed)
      refuse(op, "contracts '" + program_.dims[placed.dim].name + "', but its input is not divided along it");
    if (op.params.size() > 1) {  // one rank adds the bias to the sum
      mark_partial(block_.slots[op.params[1]]);
      if (strategy_.coordinate() != 0) op.params.pop_back();
    }
    const ValueId output = op.outputs[0];
    if (has_ring(op)) {
      of(output) = {Kind::kShard, CHASSIS_DIM_TIME};
      return RingLayout(block_, strategy_, axis_).scatter(op);
    }
    append(std::move(op), {Kind::kPartial, 0});
    complete_partial(output);
  }

  // True if the linear needs all positions and gives some of its outputs.
  bool is_column(const Op& op) const {
    const ParameterSlot& weight = block_.slots[op.params[0]];
    const Sharding placed = weight.sharding[axis_];
    return shared_output(weight) || (placed.kind == Kind::kShard && contains(weight.axes[0], placed.dim));
  }

  // The head gets no ring, because its product and loss are one op. Adapters get none, because their products are too
  // small to hide anything.
  bool may_have_ring(const Op& op) const {
    return division_.overlaps_in_ring && !program_.is_logits(block_.values[op.outputs[0]]) &&
           !block_.slots[op.params[0]].added;
  }
  bool has_ring(const Op& op) {
    adapter_linears_without_ring_ += division_.overlaps_in_ring && block_.slots[op.params[0]].added;
    return may_have_ring(op);
  }

  // One ring for all linears that read the value, so that it travels once.
  void place_gathering_ring(ValueId x) {
    std::vector<Op> linears;
    for (size_t i = at_; i < recorded_.size(); ++i) {
      Op op = renamed(recorded_[i]);
      if (!op.spec().is_linear() || op.inputs[0] != x || !is_column(op) || !may_have_ring(op)) continue;
      const ParameterSlot& weight = block_.slots[op.params[0]];
      of(op.outputs[0]) = shared_output(weight) ? Sharding{} : Sharding{Kind::kShard, weight.sharding[axis_].dim};
      is_placed_[i] = 1;
      linears.push_back(std::move(op));
    }
    RingLayout(block_, strategy_, axis_).gather(x, linears);
    for (const Op& op : linears)
      if (const auto shared = shared_output(block_.slots[op.params[0]])) take_shared(op, *shared);
  }

  // All ranks compute the whole output and continue with a part of it, so each has a part of the parameters' gradients.
  void place_shared_linear(Op op, DimId dim) {
    op.inputs[0] = column_input(op.inputs[0]);
    append(op, {});
    take_shared(op, dim);
  }
  void take_shared(const Op& op, DimId dim) {
    for (SlotId slot : op.params) mark_partial(block_.slots[slot]);
    const ValueId output = op.outputs[0];
    renamed_[output] = insert(CommOp::kTake, output, {Kind::kShard, dim}, dim);
  }

  void place_embedding(Op op) {
    const Sharding placed = block_.slots[op.params[0]].sharding[axis_];
    const ValueId output = op.outputs[0];
    if (placed.kind == Kind::kShard && contains(block_.slots[op.params[0]].axes[0], placed.dim)) {
      op.attrs.emplace_back("first", part_of(placed.dim).first);
      append(std::move(op), {Kind::kPartial, 0});
    } else if (division_.sequence_parallel) {
      op.inputs[0] = slice_time(op.inputs[0]);
      append(std::move(op), {Kind::kShard, CHASSIS_DIM_TIME});
      for (SlotId slot : block_.ops.back().params) mark_partial(block_.slots[slot]);
      return;
    } else {
      append(std::move(op), {});
      return;
    }
    complete_partial(output);
  }

  // Heads that two axes divide must be divided evenly by both, and not be shared.
  void expect_even_division(const Op& op) const {
    const GraphValue& x = block_.values[op.inputs[0]];
    const Sharding placed = x.sharding[axis_];
    if (placed.kind != Kind::kShard || placed.dim == CHASSIS_DIM_TIME) return;
    const GraphValue& y = block_.values[op.outputs[0]];
    int64_t ways = strategy_.axis_size();
    for (size_t a = 0; a < axis_; ++a)
      if (x.sharding[a] == placed || y.sharding[a] == placed) ways *= axes_before_[a].size;
    const GraphDim& dim = program_.dims[placed.dim];
    if (ways == strategy_.axis_size() || dim.size % ways == 0) return;
    throw Error(ExitCode::kConfig, division_.where,
                "axis '" + strategy_.axis() + "' and the axes before it, " + std::to_string(ways) +
                    " ranks in all, cannot divide " + dim.name + " = " + std::to_string(dim.size))
        .hint("set mode = \"ring\" or \"gather\" for the axis of positions" +
              (dim.size == 1 ? "" : ", or choose sizes whose product divides " + std::to_string(dim.size)));
  }

  void place_attention(Op op) {
    const Sharding q = of(op.inputs[0]), k = of(op.inputs[1]);
    if ((q.kind == Kind::kShard) != (k.kind == Kind::kShard))
      refuse(op, "has divided heads for only one of query and key");
    append(std::move(op), q);
  }

  // `total`: the op that makes the same of the sums over all classes.
  void place_loss(Op op, const char* total) {
    const Sharding logits = of(op.inputs[0]);
    if (logits.kind == Kind::kShard && logits.dim == CHASSIS_DIM_TIME)
      refuse(op, "has logits divided along T, but whole labels; divide the vocabulary as well");
    if (logits.kind != Kind::kShard) return append(std::move(op), {});
    if (block_.values[op.inputs[0]].dims.back() != logits.dim)
      refuse(op, "has logits divided along '" + program_.dims[logits.dim].name + "', which is not their last dim");
    // Each rank sums its part of the classes.
    const auto [first, count] = part_of(logits.dim);
    const bool has_further_ids = op.spec().placement == OpPlacement::kTopkLogp;
    Op part = op;
    part.id = OpId(has_further_ids ? "partial_topk_logp" : "partial_cross_entropy");
    part.name += ".part";
    part.attrs.emplace_back("first", first);
    part.attrs.emplace_back("count", count);
    part.outputs.clear();
    const auto add_output = [&](const char* what, ValueId like) {
      GraphValue value{op.name + what, block_.values[like].dims, GraphValueType::kFloat32, {}};
      value.sharding = block_.values[like].sharding;
      value.sharding[axis_].kind = Kind::kPartial;
      part.outputs.push_back(block_.add_value(std::move(value)));
    };
    const std::vector<ValueId> ids(op.inputs.begin() + 1, op.inputs.end());
    for (const ValueId of_op : ids) {
      add_output(".log_sum", ids[0]);
      add_output(".target", of_op);
    }
    block_.ops.push_back(part);
    op.inputs.clear();
    for (size_t i = 0; i < part.outputs.size(); ++i)
      op.inputs.push_back(insert(i % 2 == 0 ? CommOp::kLogSumExp : CommOp::kAllReduce, part.outputs[i], {}, 0));
    op.inputs.insert(op.inputs.end(), ids.begin(), ids.end());
    if (has_further_ids) std::erase_if(op.attrs, [](const auto& attr) { return attr.first == "temperature"; });
    op.id = OpId(total);
    append(std::move(op), {});
  }

  // Each rank scales its own channels; the weight may have fewer dims than the input.
  void place_channel_scale(Op op) {
    ParameterSlot& weight = block_.slots[op.params[0]];
    const Sharding channels = weight.sharding[axis_], input = of(op.inputs[0]);
    if (channels.kind == Kind::kShard && input != channels)
      refuse(op, "scales '" + program_.dims[channels.dim].name + "', but its input is not divided along it");
    if (channels.kind != Kind::kShard && input.kind == Kind::kShard) {
      if (weight.has(input.dim)) refuse_undivided(op, input.dim);
      mark_partial(weight);
    }
    append(std::move(op), input);
  }

  // A head that all others share is whole on every rank; each rank has a part of its gradient.
  void place_concat(Op op) {
    const Sharding heads = of(op.inputs[0]);
    if (heads.kind == Kind::kShard && heads.dim != CHASSIS_DIM_TIME && of(op.inputs[1]) != heads)
      op.inputs[1] = column_input(op.inputs[1]);
    append(std::move(op), heads);
  }

  // Rows of experts are sorted over all positions, so every rank has all of them. Where the linears that read them are
  // divided, each rank has a part of their gradient, which is summed before the rows of a token are.
  void place_dispatch(Op op) {
    const ValueId rows = op.outputs[0];
    const bool is_divided = std::ranges::any_of(recorded_, [&](const Op& reader) {
      return reader.spec().placement == OpPlacement::kGroupedLinear && reader.inputs[0] == rows &&
             divides_outputs(block_.slots[reader.params[0]]);
    });
    if (is_divided) expect_divided_readers(rows);
    take_whole(op, is_divided);
    append(std::move(op), {});
    if (is_divided) entered_[rows] = rows;
  }

  // True if each rank computes a part of the gradient of the value, which an op before it sums.
  bool has_summed_gradient(ValueId value) const {
    const auto entered = entered_.find(value);
    return entered != entered_.end() && entered->second == value;
  }

  // Throws unless every reader of rows gives each rank a part of their gradient. An undivided product, such as an
  // adapter's, does if its own readers do.
  void expect_divided_readers(ValueId rows) const {
    for (const Op& reader : recorded_) {
      const auto at = std::ranges::find(reader.inputs, rows);
      if (at == reader.inputs.end()) continue;
      const bool is_product = reader.spec().placement == OpPlacement::kGroupedLinear;
      if (is_product && divides_outputs(block_.slots[reader.params[0]])) continue;
      const bool passes_on = reader.inputs.size() == 1 && reader.spec().placement == OpPlacement::kPointwise;
      if (!is_product && !passes_on) refuse(reader, "needs whole gradients of rows of which others have parts");
      expect_divided_readers(reader.outputs[0]);
    }
  }

  // An op whose output has what its input has: a part of a sum on each rank, or a gradient of which each rank has a
  // part. Returns the placement of the output.
  Sharding passed_on(const Op& op) {
    const ValueId input = op.inputs[0];
    const bool is_partial = of(input).kind == Kind::kPartial;
    if (is_partial || has_summed_gradient(input))
      for (const SlotId id : op.params) mark_partial(block_.slots[id]);
    if (has_summed_gradient(input)) entered_[op.outputs[0]] = op.outputs[0];
    return is_partial ? Sharding{Kind::kPartial, 0} : Sharding{};
  }

  // The experts of a token, and values for them, on every rank. `sums`: each rank has a part of their gradients.
  void take_whole(Op& op, bool sums) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      ValueId& input = op.inputs[i];
      if (block_.values[input].type == GraphValueType::kInt32)
        input = whole(input);
      else if (of(input).kind != Kind::kPartial)
        input = sums ? column_input(input) : whole(input);
    }
  }

  bool divides_outputs(const ParameterSlot& weight) const {
    const Sharding placed = weight.sharding[axis_];
    return placed.kind == Kind::kShard && contains(weight.axes[1], placed.dim);
  }

  // As a linear, but the sum over the ranks is left to combine, which has fewer rows.
  void place_grouped_linear(Op op) {
    op.inputs[1] = whole(op.inputs[1]);
    const ParameterSlot& weight = block_.slots[op.params[0]];
    const Sharding placed = weight.sharding[axis_];
    if (placed.kind != Kind::kShard) {  // an adapter's
      if (of(op.inputs[0]).kind == Kind::kShard) refuse_undivided(op, of(op.inputs[0]).dim);
      const Sharding passed = passed_on(op);
      if (passed.kind == Kind::kPartial && op.params.size() > 1 && strategy_.coordinate() != 0) op.params.pop_back();
      return append(std::move(op), passed);
    }
    if (contains(weight.axes[0], placed.dim))
      refuse(op, "has its experts divided, but ranks along '" + strategy_.axis() + "' have the same rows");
    if (divides_outputs(weight)) {
      op.inputs[0] = column_input(op.inputs[0]);
      return append(std::move(op), placed);
    }
    if (of(op.inputs[0]) != placed)
      refuse(op, "contracts '" + program_.dims[placed.dim].name + "', but its input is not divided along it");
    if (op.params.size() > 1) {  // one rank adds the bias to the sum
      mark_partial(block_.slots[op.params[1]]);
      if (strategy_.coordinate() != 0) op.params.pop_back();
    }
    append(std::move(op), {Kind::kPartial, 0});
  }

  void place_combine(Op op) {
    const Sharding rows = of(op.inputs[0]);
    if (rows.kind == Kind::kShard) refuse_undivided(op, rows.dim);
    const bool is_partial = rows.kind == Kind::kPartial;
    take_whole(op, is_partial);
    const ValueId output = op.outputs[0];
    append(std::move(op), rows);
    if (is_partial)
      complete_partial(output);
    else if (division_.sequence_parallel)
      renamed_[output] = part(output, CHASSIS_DIM_TIME);
  }

  void place_row_sums(Op op) {
    const Sharding logits = of(op.inputs[0]);
    if (logits.kind != Kind::kShard) return append_row_sums(std::move(op), false);
    if (logits.dim != CHASSIS_DIM_TIME) refuse_undivided(op, logits.dim);
    op.inputs[1] = part(op.inputs[1], CHASSIS_DIM_TIME);
    append_row_sums(std::move(op), true);
  }

  // An op that acts on each position by itself takes its inputs as they are, if their placements agree.
  void place_pointwise(Op op) {
    Sharding common{};
    bool first = true;
    for (ValueId input : op.inputs) {
      if (input == kAbsent || block_.values[input].type == GraphValueType::kInt32) continue;
      if (!first && of(input) != common) refuse(op, "has inputs of different placement");
      common = of(input);
      first = false;
    }
    if (common == Sharding{Kind::kShard, CHASSIS_DIM_TIME})
      for (ValueId& input : op.inputs)
        if (input != kAbsent && block_.values[input].type == GraphValueType::kInt32) input = part(input, common.dim);
    if (common.kind == Kind::kShard)
      for (SlotId id : op.params) {
        ParameterSlot& slot = block_.slots[id];
        if (slot.has(common.dim)) refuse_undivided(op, common.dim);
        mark_partial(slot);  // each rank has a part of the positions, or of the heads
      }
    if (op.inputs.size() == 1 && has_summed_gradient(op.inputs[0])) passed_on(op);
    append(std::move(op), common);
  }

  // Heads that all ranks computed, since a norm read them as one, go on as each rank's own. The ranks compute the same
  // up to there, so the gradients are gathered, not summed.
  void place_view(Op op) {
    const Sharding input = of(op.inputs[0]), wanted = placement_of(op.outputs[0]);
    const bool is_divided = input.kind == Kind::kShard && input.dim != CHASSIS_DIM_TIME;
    if (is_divided || wanted.kind != Kind::kShard || wanted.dim == CHASSIS_DIM_TIME)
      return place_pointwise(std::move(op));
    op.inputs[0] = whole(op.inputs[0]);
    const ValueId output = op.outputs[0];
    append(std::move(op), {});
    renamed_[output] = part(output, wanted.dim);
  }

  // A plugin's own op is divided along a dim that it does not mix; else every rank computes all of it.
  void place_own(Op op) {
    const Sharding common = own_division(op);
    for (ValueId& input : op.inputs)
      if (input != kAbsent) input = own_input(input, common);
    for (const SlotId id : op.params) {
      ParameterSlot& slot = block_.slots[id];
      if (slot.sharding[axis_].kind == Kind::kShard && slot.sharding[axis_] != common)
        refuse(op, "reads parameters that are divided along several dims");
      if (common.kind == Kind::kShard && !slot.has(common.dim)) mark_partial(slot);
    }
    const ValueId output = op.outputs[0];
    append(std::move(op), common);
    const Sharding wanted = placement_of(output);
    const ValueId placed = wanted.kind == Kind::kShard ? part(output, wanted.dim) : whole(output);
    if (placed != output) renamed_[output] = placed;
  }

  // The division of its parameters decides; without one, its first input that is divided.
  Sharding own_division(const Op& op) {
    for (const SlotId id : op.params)
      if (const Sharding placed = block_.slots[id].sharding[axis_]; placed.kind == Kind::kShard) {
        if (!may_divide(op, placed.dim))
          refuse(op, "needs all of '" + program_.dims[placed.dim].name + "' on each rank, but its parameter '" +
                         block_.slots[id].name + "' is divided along it");
        return placed;
      }
    for (const ValueId input : op.inputs)
      if (input != kAbsent && of(input).kind == Kind::kShard && may_divide(op, of(input).dim)) return of(input);
    return {};
  }

  bool may_divide(const Op& op, DimId dim) const {
    return !block_.needs_all_of(op, dim) && block_.values[op.outputs[0]].has(dim) &&
           std::ranges::all_of(op.params, [&](SlotId id) {
             const ParameterSlot& slot = block_.slots[id];
             return !slot.has(dim) || slot.sharding[axis_] == Sharding{Kind::kShard, dim};
           });
  }

  ValueId own_input(ValueId value, Sharding common) {
    if (common.kind != Kind::kShard) return whole(value);
    if (block_.values[value].has(common.dim)) return part(value, common.dim);
    // Each rank has a part of the value's gradient.
    return block_.values[value].type == GraphValueType::kInt32 ? whole(value) : column_input(value);
  }

  // The placement in which other ops expect a value with these dims.
  Sharding placement_of(ValueId value) const {
    const GraphValue& v = block_.values[value];
    if (v.type == GraphValueType::kInt32) return {};  // ids are whole
    const auto divided = std::ranges::find_if(v.dims, [&](DimId dim) { return divides(dim); });
    if (divided != v.dims.end()) return {Kind::kShard, *divided};
    return division_.sequence_parallel && v.has(CHASSIS_DIM_TIME) ? Sharding{Kind::kShard, CHASSIS_DIM_TIME}
                                                                  : Sharding{};
  }

  // A partial sum is completed at once: reduced for all, or scattered along T.
  void complete_partial(ValueId value) {
    const Sharding wanted = division_.sequence_parallel ? Sharding{Kind::kShard, CHASSIS_DIM_TIME} : Sharding{};
    renamed_[value] = converted(value, wanted);
  }

  std::map<ValueId, ValueId> entered_;
  size_t adapter_linears_without_ring_ = 0;
};

}  // namespace

std::unique_ptr<BlockLayout> tensor_layout(BlockType& block, const AppliedAxis& axis) {
  return std::make_unique<TensorLayout>(block, axis);
}

}  // namespace chassis
