// The part of the layout pass that axes of all kinds share: slots, conversions of values, parts of rows, and outputs.
#include "host/compile/block_layout.hpp"

#include <algorithm>

#include "host/base/batch_fields.hpp"
#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/graph/output_names.hpp"

namespace chassis {

namespace {

using Kind = Sharding::Kind;

constexpr char kDeclareHint[] =
    "if it computes a part of its output from the same part of its inputs, let the model declare its mixed_dims";

}  // namespace

void BlockLayout::run() {
  for (ParameterSlot& slot : block_.slots) slot.sharding.resize(axis_ + 1);
  for (GraphValue& value : block_.values) value.sharding.resize(axis_ + 1);
  for (ParameterSlot& slot : block_.slots) place_slot(slot);
  if (divides_inputs())
    for (const auto& [name, value] : block_.inputs)
      if (block_.values[value].has(CHASSIS_DIM_TIME)) of(value) = {Kind::kShard, CHASSIS_DIM_TIME};
  recorded_ = std::move(block_.ops);
  block_.ops.clear();
  prepare();
  is_placed_.assign(recorded_.size(), 0);
  for (at_ = 0; at_ < recorded_.size(); ++at_)
    if (!is_placed_[at_]) place(renamed(recorded_[at_]));
  for (auto& [name, value] : block_.outputs) finish_output(name, value);
}

Error BlockLayout::indivisible(DimId dim, const std::string& of) const {
  const GraphDim& d = program_.dims[dim];
  return {ExitCode::kConfig, division_.where,
          "axis '" + strategy_.axis() + "' of size " + std::to_string(strategy_.axis_size()) + " cannot divide " +
              d.name + " = " + std::to_string(d.size) + of};
}

Error BlockLayout::refusal(const Op& op, const std::string& why) const {
  return {ExitCode::kConfig, division_.where,
          "axis '" + strategy_.axis() + "' cannot divide block '" + block_.name + "': " + op.id.text() + " '" +
              op.name + "' " + why};
}

void BlockLayout::refuse_random_bits(const Op& op) const {
  const DimId dim = block_.values[op.inputs[0]].sharding[axis_].dim;
  throw refusal(op, "chooses elements by their place in the whole value, but its input is divided along '" +
                        program_.dims[dim].name + "'" + (dim == CHASSIS_DIM_TIME ? " by two axes" : ""))
      .hint(dim == CHASSIS_DIM_TIME ? "set sequence_parallel = false, or its probability (adapter.dropout) to 0"
                                    : "set its probability (adapter.dropout) to 0, or exclude the linears after " +
                                          program_.dims[dim].name + " from the adapter");
}

void BlockLayout::mark_partial(ParameterSlot& slot) const {
  if (std::find(slot.partial_over.begin(), slot.partial_over.end(), strategy_.axis()) == slot.partial_over.end())
    slot.partial_over.push_back(strategy_.axis());
}

bool BlockLayout::is_shared(DimId dim) const {
  return may_share(dim) && program_.dims[dim].size < strategy_.axis_size() &&
         strategy_.axis_size() % program_.dims[dim].size == 0;
}

bool BlockLayout::is_read_whole(const ParameterSlot& slot, DimId dim) const {
  const Op *whole = nullptr, *divided = nullptr;
  for (const Op& op : block_.ops) {
    if (std::ranges::none_of(op.params, [&](SlotId s) { return &block_.slots[s] == &slot; })) continue;
    (op.is_own() && block_.needs_all_of(op, dim) ? whole : divided) = &op;
  }
  if (whole != nullptr && divided != nullptr)
    throw refusal(*whole, mixing(*whole, dim) + ", and so needs the whole of parameter '" + slot.name + "', of which " +
                              divided->id.text() + " '" + divided->name + "' reads a part")
        .hint(kDeclareHint);
  return whole != nullptr;
}

std::string BlockLayout::mixing(const Op& op, DimId dim) const {
  const std::string& name = program_.dims[dim].name;
  return op.mixed_dims ? "mixes '" + name + "'" : "does not declare which dims it mixes, so it may mix '" + name + "'";
}

void BlockLayout::place_slot(ParameterSlot& slot) {
  for (size_t a = 0; a < slot.axes.size(); ++a)
    for (DimId dim : slot.axes[a]) {
      if (!divides(dim)) continue;
      if (a == 0 && is_shared(dim)) continue;  // whole on every rank
      if (is_read_whole(slot, dim)) continue;
      const GraphDim& d = program_.dims[dim];
      if (d.size % strategy_.axis_size() != 0 && !pads(dim))
        throw indivisible(dim).hint("choose a size that divides " + std::to_string(d.size));
      slot.sharding[axis_] = {Kind::kShard, dim};
      return;
    }
}

ValueId BlockLayout::converted(ValueId value, Sharding wanted) {
  if (of(value) == wanted) return value;
  const auto key = std::make_pair(value, std::make_pair(wanted.kind, wanted.dim));
  if (auto known = converted_.find(key); known != converted_.end()) return known->second;
  const Sharding have = of(value);
  auto collective = CommOp::kNone;
  DimId moved = 0;
  if (have.kind == Kind::kPartial && wanted.kind == Kind::kReplicate) collective = CommOp::kAllReduce;
  if (have.kind == Kind::kPartial && wanted.kind == Kind::kShard)
    collective = CommOp::kReduceScatter, moved = wanted.dim;
  if (have.kind == Kind::kShard && wanted.kind == Kind::kReplicate) collective = CommOp::kAllGather, moved = have.dim;
  if (collective == CommOp::kNone)
    throw internal_error("no collective converts value '" + block_.values[value].name + "' to its placement");
  return converted_[key] = insert(collective, value, wanted, moved);
}

ValueId BlockLayout::whole(ValueId value) {
  const Sharding have = of(value);
  if (have.kind != Kind::kShard || !block_.values[value].has(have.dim)) return value;
  const auto [known, fresh] = whole_.try_emplace(value, 0);
  if (fresh) known->second = insert(CommOp::kGather, value, {}, have.dim);
  return known->second;
}

ValueId BlockLayout::part(ValueId value, DimId dim) {
  const Sharding wanted{Kind::kShard, dim};
  if (of(value) == wanted) return value;
  const ValueId all = whole(value);
  const GraphValueType type = block_.values[all].type;
  if (type == GraphValueType::kInt32 && dim == CHASSIS_DIM_TIME) return slice_time(all, padding_of(all));
  const auto [known, fresh] = parts_.try_emplace({all, dim}, 0);
  if (fresh) {
    known->second = insert(CommOp::kSplit, all, wanted, dim);
    whole_[known->second] = all;
  }
  return known->second;
}

// The value that the data have after the end of a row.
int64_t BlockLayout::padding_of(ValueId ids) const {
  const BatchFieldSpec* field = find_batch_field(block_.values[ids].name);
  return field ? field->padding.value_or(0) : 0;
}

ValueId BlockLayout::insert(CommOp collective, ValueId value, Sharding placed, DimId moved, int64_t pad) {
  GraphValue result = block_.values[value];
  result.sharding[axis_] = placed;
  Op op;
  op.id = OpId(collective);
  op.name = strategy_.axis() + "." + result.name;
  op.attrs.emplace_back("axis", strategy_.axis());
  if (comm_spec(collective).has_dim) {
    const auto at = std::find(result.dims.begin(), result.dims.end(), moved);
    op.attrs.emplace_back("dim", static_cast<int64_t>(at - result.dims.begin()));
  }
  if (collective == CommOp::kTake) op.attrs.emplace_back("first", part_of(moved).first);
  if ((collective == CommOp::kGather || collective == CommOp::kSplit) && moved != CHASSIS_DIM_TIME && is_shared(moved))
    op.attrs.emplace_back(kSharers, strategy_.axis_size() / program_.dims[moved].size);
  if (collective == CommOp::kAllToAll) {
    const auto to = std::find(result.dims.begin(), result.dims.end(), placed.dim);
    op.attrs.emplace_back("to", static_cast<int64_t>(to - result.dims.begin()));
  }
  if (pad != 0) op.attrs.emplace_back("pad", pad);
  if (is_zigzag_ && moved == CHASSIS_DIM_TIME) op.attrs.emplace_back(kZigzag, int64_t{1});
  op.inputs = {value};
  op.outputs = {block_.add_value(std::move(result))};
  block_.ops.push_back(op);
  return block_.ops.back().outputs[0];
}

Op BlockLayout::renamed(Op op) const {
  for (ValueId& input : op.inputs)
    if (input != kAbsent)
      if (auto known = renamed_.find(input); known != renamed_.end()) input = known->second;
  return op;
}

void BlockLayout::mark_query_part(Op& op) const {
  op.attrs.emplace_back(kQueryPart, strategy_.coordinate());
  if (is_zigzag_) op.attrs.emplace_back(kPieces, strategy_.axis());
}

void BlockLayout::place_random_bits(Op& op) const {
  const GraphValue& x = block_.values[op.inputs[0]];
  const Sharding placed = x.sharding[axis_];
  if (placed.kind == Kind::kReplicate) return;
  if (placed.dim == CHASSIS_DIM_TIME && op.attr(kQueryPart) == nullptr) return mark_query_part(op);
  constexpr size_t kFirstOfPosition = 2;  // after [B, T]
  if (placed.dim == CHASSIS_DIM_TIME || x.dims[kFirstOfPosition] != placed.dim) refuse_random_bits(op);
  const int64_t inner = program_.dim_product({x.dims.begin() + kFirstOfPosition + 1, x.dims.end()});
  op.attrs.emplace_back("first", part_of(placed.dim).first * inner);
}

ValueId BlockLayout::slice_time(ValueId ids, int64_t pad) {
  const auto [known, fresh] = sliced_.try_emplace({ids, pad}, 0);
  if (fresh) known->second = insert(CommOp::kSlice, ids, {Kind::kShard, CHASSIS_DIM_TIME}, CHASSIS_DIM_TIME, pad);
  return known->second;
}

std::pair<int64_t, int64_t> BlockLayout::part_of(DimId dim) const {
  const int64_t size = program_.dims[dim].size, ways = strategy_.axis_size(), part = (size + ways - 1) / ways;
  const int64_t first = is_shared(dim) ? strategy_.coordinate() * size / ways : strategy_.coordinate() * part;
  return {first, std::clamp<int64_t>(size - first, 0, part)};
}

void BlockLayout::finish_output(const std::string& name, ValueId& value) {
  if (name.starts_with(kRouterSumsOutput)) return;  // the host adds up the ranks' parts
  if (auto renamed = renamed_.find(value); renamed != renamed_.end()) value = renamed->second;
  if (of(value).kind == Kind::kPartial)
    throw internal_error("block '" + block_.name + "' has the partial value '" + name + "' as output");
  // The host reads log-probabilities and scores, so every rank gets all of them, and gives them the same gradient.
  if (block_.values[value].type == GraphValueType::kFloat32) value = whole(value);
  if (program_.is_logits(block_.values[value])) value = converted(value, {});
}

void BlockLayout::append_row_sums(Op op, bool divides_positions) {
  const ValueId sums = op.outputs[0], largest = op.outputs[1];
  if (!divides_positions) return append(std::move(op), {});
  append(std::move(op), {Kind::kPartial, 0});
  of(largest) = {};  // of each rank's positions; nothing but the host reads it
  const bool is_read =
      std::ranges::any_of(recorded_, [&](const Op& op) { return std::ranges::count(op.inputs, sums) > 0; }) ||
      std::ranges::any_of(block_.outputs, [&](const auto& output) {
        return output.second == sums && !output.first.starts_with(kRouterSumsOutput);
      });
  if (is_read) renamed_[sums] = insert(CommOp::kAllReduce, sums, {}, 0);
}

void BlockLayout::append(Op op, Sharding result) {
  for (const ValueId output : op.outputs) of(output) = result;
  block_.ops.push_back(std::move(op));
}

}  // namespace chassis
