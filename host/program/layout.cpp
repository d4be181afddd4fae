// Walks each block once per axis: derives placements from the slots' dims and converts values by collectives.
#include "host/program/layout.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/program/ring_layout.hpp"
#include "host/program/row_pieces.hpp"

namespace chassis {
namespace {

using Kind = Sharding::Kind;

bool contains(const std::vector<DimId>& dims, DimId dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

bool has_dim(const Slot& slot, DimId dim) {
  return std::any_of(slot.axes.begin(), slot.axes.end(), [&](const auto& axis) { return contains(axis, dim); });
}

int64_t divided(int64_t size, int64_t ways) { return (size + ways - 1) / ways; }

// What a rank has of a dim that the axis divides.
int64_t divided(int64_t size, const LayoutAxis& axis, DimId dim) {
  if (axis.is_zigzag && dim == CHASSIS_DIM_TIME) return kRowPieces * divided(size, kRowPieces * axis.size);
  return divided(size, axis.size);
}

// Walks one block for one axis and rebuilds its op list.
class BlockLayout {
 public:
  // `axes`: those that were applied before.
  BlockLayout(const Program& program, BlockType& block, const LayoutStrategy& strategy, const Division& division,
              bool is_zigzag, const std::vector<LayoutAxis>& axes)
      : program_(program),
        block_(block),
        strategy_(strategy),
        division_(division),
        is_zigzag_(is_zigzag),
        axes_before_(axes),
        axis_(axes.size()) {}

  void run() {
    for (Slot& slot : block_.slots) slot.sharding.resize(axis_ + 1);
    for (GraphValue& value : block_.values) value.sharding.resize(axis_ + 1);
    for (Slot& slot : block_.slots) place_slot(slot);
    if (division_.sequence_parallel || divides_context())
      for (const auto& [name, value] : block_.inputs) of(value) = {Kind::kShard, CHASSIS_DIM_TIME};
    recorded_ = std::move(block_.ops);
    block_.ops.clear();
    if (divides_context()) slice_fields(recorded_);
    in_ring_.assign(recorded_.size(), 0);
    for (at_ = 0; at_ < recorded_.size(); ++at_)
      if (!in_ring_[at_]) place(renamed(recorded_[at_]));
    for (auto& [name, value] : block_.outputs) finish_output(name, value);
  }
  size_t adapter_linears_without_ring() const { return adapter_linears_without_ring_; }

 private:
  [[noreturn]] void refuse(const Op& op, const std::string& why) const { throw refusal(op, why); }
  [[noreturn]] void refuse_context(const Op& op, const std::string& why) const {
    throw refusal(op, why).hint("set " + mesh_key(strategy_.axis()) + " = 1");
  }
  // `of`: whose dim it is, if that must be said.
  Error indivisible(DimId dim, const std::string& of = "") const {
    const Dim& d = program_.dims[dim];
    return {ExitCode::kConfig, division_.where,
            "axis '" + strategy_.axis() + "' of size " + std::to_string(strategy_.axis_size()) + " cannot divide " +
                d.name + " = " + std::to_string(d.size) + of};
  }
  Error refusal(const Op& op, const std::string& why) const {
    return {ExitCode::kConfig, division_.where,
            "axis '" + strategy_.axis() + "' cannot divide block '" + block_.name + "': " + op.id + " '" + op.name +
                "' " + why};
  }

  [[noreturn]] void refuse_random_bits(const Op& op) const {
    const DimId dim = block_.values[op.inputs[0]].sharding[axis_].dim;
    throw refusal(op, "chooses elements by their place in the whole value, but its input is divided along '" +
                          program_.dims[dim].name + "'" + (dim == CHASSIS_DIM_TIME ? " by two axes" : ""))
        .hint(dim == CHASSIS_DIM_TIME ? "set sequence_parallel = false, or its probability (adapter.dropout) to 0"
                                      : "set its probability (adapter.dropout) to 0, or exclude the linears behind " +
                                            program_.dims[dim].name + " from the adapter");
  }

  [[noreturn]] void refuse_undivided(const Op& op, DimId dim) const {
    refuse(op, "needs all of '" + program_.dims[dim].name + "' on each rank, but its input is divided along it");
  }

  Sharding& of(ValueId value) { return block_.values[value].sharding[axis_]; }

  bool is_ring() const { return division_.context == ContextMode::kRing; }
  bool divides_context() const { return division_.context != ContextMode::kNone; }
  bool divides(DimId dim) const { return division_.dims.contains(program_.dims[dim].name); }
  bool pads(DimId dim) const { return division_.dims.find(program_.dims[dim].name)->second; }

  void mark_partial(Slot& slot) const {
    if (std::find(slot.partial_over.begin(), slot.partial_over.end(), strategy_.axis()) == slot.partial_over.end())
      slot.partial_over.push_back(strategy_.axis());
  }

  // The dim has fewer parts than the axis has ranks: equal numbers of neighbours share a part.
  bool is_shared(DimId dim) const {
    const bool may_share = divides_context() || (divides(dim) && !pads(dim));
    return may_share && program_.dims[dim].size < strategy_.axis_size() &&
           strategy_.axis_size() % program_.dims[dim].size == 0;
  }

  // The outputs of a linear that ranks share; nothing if there are none.
  std::optional<DimId> shared_output(const Slot& weight) const {
    const std::vector<DimId>& outputs = weight.axes[0];
    const auto found = std::find_if(outputs.begin(), outputs.end(), [&](DimId dim) { return is_shared(dim); });
    return found == outputs.end() ? std::nullopt : std::optional(*found);
  }

  void place_slot(Slot& slot) {
    for (size_t a = 0; a < slot.axes.size(); ++a)
      for (DimId dim : slot.axes[a]) {
        if (!divides(dim)) continue;
        if (a == 0 && is_shared(dim)) continue;  // whole on every rank
        const Dim& d = program_.dims[dim];
        if (d.size % strategy_.axis_size() != 0 && !pads(dim))
          throw indivisible(dim).hint("choose a size that divides " + std::to_string(d.size));
        slot.sharding[axis_] = {Kind::kShard, dim};
        return;
      }
  }

  // The value in the wanted placement, converted once and reused.
  ValueId converted(ValueId value, Sharding wanted) {
    if (of(value) == wanted) return value;
    const auto key = std::make_pair(value, std::make_pair(wanted.kind, wanted.dim));
    if (auto known = converted_.find(key); known != converted_.end()) return known->second;
    const Sharding have = of(value);
    std::string collective;
    DimId moved = 0;
    if (have.kind == Kind::kPartial && wanted.kind == Kind::kReplicate) collective = "comm.all_reduce";
    if (have.kind == Kind::kPartial && wanted.kind == Kind::kShard)
      collective = "comm.reduce_scatter", moved = wanted.dim;
    if (have.kind == Kind::kShard && wanted.kind == Kind::kReplicate) collective = "comm.all_gather", moved = have.dim;
    if (collective.empty())
      throw internal_error("no collective converts value '" + block_.values[value].name + "' to its placement");
    return converted_[key] = insert(collective, value, wanted, moved);
  }

  // The input of a column-divided linear: whole in forward, its gradients summed over the axis in backward.
  ValueId column_input(ValueId value) {
    if (of(value).kind == Kind::kShard) return converted(value, {});  // gather; its backward reduces
    auto [known, fresh] = entered_.try_emplace(value, 0);
    if (fresh) known->second = insert("comm.copy", value, {}, 0);
    return known->second;
  }

  ValueId insert(const std::string& collective, ValueId value, Sharding placed, DimId moved, int64_t pad = 0) {
    GraphValue result = block_.values[value];
    result.sharding[axis_] = placed;
    Op op;
    op.id = collective;
    op.name = strategy_.axis() + "." + result.name;
    op.attrs.emplace_back("axis", strategy_.axis());
    if (collective == "comm.all_gather" || collective == "comm.reduce_scatter" || collective == kSlice ||
        collective == kTake || collective == kAllToAll) {
      const auto at = std::find(result.dims.begin(), result.dims.end(), moved);
      op.attrs.emplace_back("dim", static_cast<int64_t>(at - result.dims.begin()));
    }
    if (collective == kTake) op.attrs.emplace_back("first", part_of(moved).first);
    if (collective == kAllToAll) {
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

  void append(Op op, Sharding result) {
    of(op.outputs[0]) = result;
    block_.ops.push_back(std::move(op));
  }

  Op renamed(Op op) const {
    for (ValueId& input : op.inputs)
      if (input != kAbsent)
        if (auto known = renamed_.find(input); known != renamed_.end()) input = known->second;
    return op;
  }

  void place(Op op) {
    if (divides_context()) return place_in_context(std::move(op));
    if (is_collective(op)) expect_even_division(op);
    if (op.id == "linear") return place_linear(std::move(op));
    if (op.id == "embedding") return place_embedding(std::move(op));
    if (op.id == "attention") return place_attention(std::move(op));
    if (op.id == "cross_entropy") return place_loss(std::move(op));
    if (op.id == "channel_scale") return place_channel_scale(std::move(op));
    if (op.id == "score") op.inputs[0] = converted(op.inputs[0], {});  // reads one position
    if (has_random_bits(op)) place_random_bits(op);
    place_pointwise(std::move(op));
  }

  // The op computes some positions of a row.
  void mark_query_part(Op& op) const {
    op.attrs.emplace_back(kQueryPart, strategy_.coordinate());
    if (is_zigzag_) op.attrs.emplace_back(kPieces, strategy_.axis());
  }

  // The bits of an element depend on its position and its place there, so a rank that has some of them says which.
  void place_random_bits(Op& op) const {
    const GraphValue& x = block_.values[op.inputs[0]];
    const Sharding placed = x.sharding[axis_];
    if (placed.kind == Kind::kReplicate) return;
    if (placed.dim == CHASSIS_DIM_TIME && op.attr(kQueryPart) == nullptr) return mark_query_part(op);
    constexpr size_t kFirstOfPosition = 2;  // behind [B, T]
    if (placed.dim == CHASSIS_DIM_TIME || x.dims[kFirstOfPosition] != placed.dim) refuse_random_bits(op);
    const int64_t inner = program_.dim_product({x.dims.begin() + kFirstOfPosition + 1, x.dims.end()});
    op.attrs.emplace_back("first", part_of(placed.dim).first * inner);
  }

  void place_linear(Op op) {
    const Slot& weight = block_.slots[op.params[0]];
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

  // Needs all positions, and gives some of its outputs.
  bool is_column(const Op& op) const {
    const Slot& weight = block_.slots[op.params[0]];
    const Sharding placed = weight.sharding[axis_];
    return shared_output(weight) || (placed.kind == Kind::kShard && contains(weight.axes[0], placed.dim));
  }

  // The head's product and loss are one op. The products of an adapter are too small to hide anything.
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
      if (op.id != "linear" || op.inputs[0] != x || !is_column(op) || !may_have_ring(op)) continue;
      const Slot& weight = block_.slots[op.params[0]];
      of(op.outputs[0]) = shared_output(weight) ? Sharding{} : Sharding{Kind::kShard, weight.sharding[axis_].dim};
      in_ring_[i] = 1;
      linears.push_back(std::move(op));
    }
    RingLayout(block_, strategy_, axis_).gather(x, linears);
    for (const Op& op : linears)
      if (const auto shared = shared_output(block_.slots[op.params[0]])) take_shared(op, *shared);
  }

  // All ranks compute the whole output and go on with one part of it, so each has a part of the parameters' gradients.
  void place_shared_linear(Op op, DimId dim) {
    op.inputs[0] = column_input(op.inputs[0]);
    append(op, {});
    take_shared(op, dim);
  }
  void take_shared(const Op& op, DimId dim) {
    for (SlotId slot : op.params) mark_partial(block_.slots[slot]);
    const ValueId output = op.outputs[0];
    renamed_[output] = insert(std::string(kTake), output, {Kind::kShard, dim}, dim);
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

  // Ids are replicated, so a rank takes its part of them without communication.
  ValueId slice_time(ValueId ids, int64_t pad = 0) {
    const auto [known, fresh] = sliced_.try_emplace({ids, pad}, 0);
    if (fresh)
      known->second = insert(std::string(kSlice), ids, {Kind::kShard, CHASSIS_DIM_TIME}, CHASSIS_DIM_TIME, pad);
    return known->second;
  }

  // ---- an axis that divides positions: every op reads those of its rank, and attention also those of others

  // At the begin of the block, so that runs of ops stay together for the patterns of providers.
  void slice_fields(const std::vector<Op>& recorded) {
    for (Op op : recorded)
      if (op.id != "attention") slice_inputs(op);
  }
  // Behind the end, labels have the index that is ignored.
  void slice_inputs(Op& op) {
    const int64_t pad = op.id == "cross_entropy" ? op.attr_int("ignore_index", -100) : 0;
    for (ValueId& input : op.inputs)
      if (input != kAbsent && block_.values[input].type == GraphValueType::kInt32) input = slice_time(input, pad);
  }

  void place_in_context(Op op) {
    if (op.id == "attention") return place_attention_in_context(std::move(op));
    if (op.id == "score") refuse_context(op, "reads one position of a row, which only one rank has");
    if (op.attr("long_inv_freq") != nullptr)
      refuse_context(op, "chooses its frequencies by the largest position of a row");
    if (has_random_bits(op)) place_random_bits(op);
    slice_inputs(op);
    if (op.id == "cross_entropy") return place_loss_in_context(std::move(op));
    for (const SlotId slot : op.params) mark_partial(block_.slots[slot]);  // each rank has a part of the positions
    append(std::move(op), {Kind::kShard, CHASSIS_DIM_TIME});
  }

  // Documents and prefixes stay those of whole rows.
  void place_attention_in_context(Op op) {
    const Sharding positions{Kind::kShard, CHASSIS_DIM_TIME};
    if (is_ring()) {
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
    renamed_[output] = insert(std::string(kAllToAll), output, positions, heads.dim);
  }

  // All positions of some heads. Where ranks share a key-value head, each gathers all heads and goes on with its own.
  ValueId with_all_positions(const Op& op, ValueId value, bool may_share) {
    constexpr size_t kHeads = 2;  // of [B, T, heads, head_dim]
    const DimId heads = block_.values[value].dims[kHeads];
    const int64_t size = program_.dims[heads].size;
    const Sharding placed{Kind::kShard, heads};
    if (size % strategy_.axis_size() == 0) return insert(std::string(kAllToAll), value, placed, CHASSIS_DIM_TIME);
    if (!may_share || !is_shared(heads))
      throw indivisible(heads, " of '" + op.name + "'")
          .hint("choose a size that divides " + std::to_string(size) + (may_share ? " or is a multiple of it" : "") +
                ", or mode = \"ring\" or \"gather\"");
    return insert(std::string(kTake), converted(value, {}), placed, heads);
  }

  // Each rank has the sum over its positions; all get the sum of these.
  void place_loss_in_context(Op op) {
    const ValueId output = op.outputs[0];
    append(std::move(op), {Kind::kPartial, 0});
    renamed_[output] = insert("comm.all_reduce", output, {}, 0);
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
    const Dim& dim = program_.dims[placed.dim];
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

  void place_loss(Op op) {
    const Sharding logits = of(op.inputs[0]);
    if (logits.kind == Kind::kShard && logits.dim == CHASSIS_DIM_TIME)
      refuse(op, "has logits divided along T, but whole labels; divide the vocabulary as well");
    if (logits.kind != Kind::kShard) return append(std::move(op), {});
    if (block_.values[op.inputs[0]].dims.back() != logits.dim)
      refuse(op, "has logits divided along '" + program_.dims[logits.dim].name + "', which is not their last dim");
    // Each rank sums its part of the classes.
    const auto [first, count] = part_of(logits.dim);
    Op part = op;
    part.id = "partial_cross_entropy";
    part.name += ".part";
    part.attrs.emplace_back("first", first);
    part.attrs.emplace_back("count", count);
    part.outputs.clear();
    for (const char* what : {".log_sum", ".target"}) {
      GraphValue value{op.name + what, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME}, GraphValueType::kFloat32, {}};
      value.sharding = block_.values[op.inputs[1]].sharding;  // of the labels
      value.sharding[axis_].kind = Kind::kPartial;
      part.outputs.push_back(block_.add_value(std::move(value)));
    }
    block_.ops.push_back(part);
    const ValueId log_sum = insert(std::string(kLogSumExp), part.outputs[0], {}, 0);
    const ValueId target = insert("comm.all_reduce", part.outputs[1], {}, 0);
    op.id = "total_cross_entropy";
    op.inputs = {log_sum, target, op.inputs[1]};
    append(std::move(op), {});
  }

  // This rank's indices of a divided dim: the first, and how many are not padding.
  std::pair<int64_t, int64_t> part_of(DimId dim) const {
    const int64_t size = program_.dims[dim].size, part = divided(size, strategy_.axis_size());
    const int64_t first =
        is_shared(dim) ? strategy_.coordinate() * size / strategy_.axis_size() : strategy_.coordinate() * part;
    return {first, std::clamp<int64_t>(size - first, 0, part)};
  }

  // Each rank scales its own channels; the weight may have fewer dims than the input.
  void place_channel_scale(Op op) {
    Slot& weight = block_.slots[op.params[0]];
    const Sharding channels = weight.sharding[axis_], input = of(op.inputs[0]);
    if (channels.kind == Kind::kShard && input != channels)
      refuse(op, "scales '" + program_.dims[channels.dim].name + "', but its input is not divided along it");
    if (channels.kind != Kind::kShard && input.kind == Kind::kShard) {
      if (has_dim(weight, input.dim)) refuse_undivided(op, input.dim);
      mark_partial(weight);
    }
    append(std::move(op), input);
  }

  // An op that acts on each position by itself takes its inputs as they are, if their placements agree.
  void place_pointwise(Op op) {
    Sharding common{};
    bool first = true;
    for (ValueId input : op.inputs) {
      if (input == kAbsent || block_.values[input].type != GraphValueType::kCompute) continue;
      if (!first && of(input) != common) refuse(op, "has inputs of different placement");
      common = of(input);
      first = false;
    }
    if (common.kind == Kind::kShard)
      for (SlotId id : op.params) {
        Slot& slot = block_.slots[id];
        if (has_dim(slot, common.dim)) refuse_undivided(op, common.dim);
        mark_partial(slot);  // each rank has a part of the positions, or of the heads
      }
    append(std::move(op), common);
  }

  // A partial sum is completed at once: reduced for all, or scattered along T.
  void complete_partial(ValueId value) {
    const Sharding wanted = division_.sequence_parallel ? Sharding{Kind::kShard, CHASSIS_DIM_TIME} : Sharding{};
    renamed_[value] = converted(value, wanted);
  }

  void finish_output(const std::string& name, ValueId& value) {
    if (auto renamed = renamed_.find(value); renamed != renamed_.end()) value = renamed->second;
    if (of(value).kind == Kind::kPartial)
      throw internal_error("block '" + block_.name + "' has the partial value '" + name + "' as output");
    if (program_.is_logits(block_.values[value])) value = converted(value, {});
  }

  const Program& program_;
  BlockType& block_;
  const LayoutStrategy& strategy_;
  const Division& division_;
  const bool is_zigzag_;
  const std::vector<LayoutAxis>& axes_before_;
  const size_t axis_;
  std::map<std::pair<ValueId, std::pair<Kind, DimId>>, ValueId> converted_;
  std::map<ValueId, ValueId> entered_, renamed_;
  std::map<std::pair<ValueId, int64_t>, ValueId> sliced_;  // by value and padding
  std::vector<Op> recorded_;
  size_t at_ = 0;                 // the op that is placed
  std::vector<uint8_t> in_ring_;  // by recorded op: placed with one before it
  size_t adapter_linears_without_ring_ = 0;
};

// Under a causal mask a query has the more to do the later it is. With all positions of some heads, ranks have the
// same.
bool divides_in_zigzag(const Program& program, const Division& division) {
  if (division.context != ContextMode::kGather) return division.context == ContextMode::kRing;
  return std::ranges::any_of(program.blocks, [](const BlockType& block) {
    return std::ranges::any_of(block.ops,
                               [](const Op& op) { return op.id == "attention" && op.attr_int("causal", 0) != 0; });
  });
}

}  // namespace

std::string dual_of(std::string_view collective) {
  if (collective == "comm.copy") return "comm.all_reduce";
  if (collective == "comm.all_reduce") return "comm.copy";
  if (collective == "comm.all_gather") return "comm.reduce_scatter";
  if (collective == "comm.reduce_scatter") return "comm.all_gather";
  if (collective == kAllToAll) return std::string(kAllToAll);
  if (collective == kShift) return std::string(kShiftBack);
  if (collective == kShiftBack) return std::string(kShift);
  return {};
}

int64_t ProgramLayout::local_size(const std::vector<Sharding>& sharding, DimId dim, int64_t size) const {
  for (size_t a = 0; a < std::min(axes.size(), sharding.size()); ++a) {
    const bool is_divided = sharding[a].kind == Kind::kShard && sharding[a].dim == dim;
    if (is_divided || (sharding[a].is_chunk && dim == CHASSIS_DIM_TIME)) size = divided(size, axes[a], dim);
  }
  return size;
}

std::vector<int64_t> ProgramLayout::local_shape(const Program& program, const GraphValue& value, int64_t batch,
                                                int64_t time) const {
  std::vector<int64_t> shape;
  for (DimId dim : value.dims) {
    const int64_t size = dim == CHASSIS_DIM_BATCH ? batch : dim == CHASSIS_DIM_TIME ? time : program.dims[dim].size;
    shape.push_back(local_size(value.sharding, dim, size));
  }
  return shape;
}

std::vector<int64_t> ProgramLayout::local_shape(const Program& program, const Slot& slot) const {
  std::vector<int64_t> shape;
  for (const auto& axis : slot.axes) {
    int64_t size = 1;
    for (DimId dim : axis) size *= local_size(slot.sharding, dim, program.dims[dim].size);
    shape.push_back(size);
  }
  return shape;
}

const LayoutAxis& ProgramLayout::axis(std::string_view name) const {
  const auto found = std::ranges::find(axes, name, &LayoutAxis::name);
  CHASSIS_CHECK(found != axes.end(), std::string(name));
  return *found;
}

ProgramLayout ProgramLayout::of_piece(std::string_view name) const {
  ProgramLayout out = *this;
  const auto found = std::ranges::find(out.axes, name, &LayoutAxis::name);
  CHASSIS_CHECK(found != out.axes.end() && found->is_zigzag, std::string(name));
  found->size *= kRowPieces;
  found->is_zigzag = false;
  return out;
}

std::vector<int64_t> ProgramLayout::begin(const Program& program, const Slot& slot) const {
  std::vector<int64_t> out;
  for (const auto& axis : slot.axes) {
    int64_t first = 0, size = 1;
    for (DimId dim : axis) {
      int64_t first_index = 0, left = program.dims[dim].size;
      for (size_t a = 0; a < std::min(axes.size(), slot.sharding.size()); ++a) {
        if (slot.sharding[a] != Sharding{Kind::kShard, dim}) continue;
        left = divided(left, axes[a], dim);
        first_index += axes[a].coordinate * left;
      }
      first = first * program.dims[dim].size + first_index;
      size *= program.dims[dim].size;
    }
    out.push_back(std::min(first, size));
  }
  return out;
}

ProgramLayout apply_layout(Program& program, std::span<const LayoutStrategy* const> stack) {
  ProgramLayout layout;
  for (const LayoutStrategy* strategy : stack) {
    const Division division = strategy->divide(program);
    const bool is_zigzag = divides_in_zigzag(program, division);
    LayoutAxis axis{strategy->axis(), strategy->axis_size(), strategy->coordinate(), division.where, is_zigzag};
    for (BlockType& block : program.blocks) {
      BlockLayout pass(program, block, *strategy, division, is_zigzag, layout.axes);
      pass.run();
      axis.adapter_linears_without_ring += pass.adapter_linears_without_ring();
    }
    layout.axes.push_back(std::move(axis));
  }
  return layout;
}

}  // namespace chassis
