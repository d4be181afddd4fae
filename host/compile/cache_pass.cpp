// Chooses the cached values by a minimum cut between the model's stream and the keys and values of an attention.
#include "host/compile/cache_pass.hpp"

#include <algorithm>
#include <vector>

#include "host/compile/min_cut.hpp"
#include "host/graph/collective_ops.hpp"
#include "host/graph/op_table.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

// How many times fewer bytes the cached values must have than keys and values. Without it, a model with as many key
// heads as query heads would cache its hidden values and compute two projections of every position for each token.
constexpr uint64_t kLeastSaving = 4;

class CachedValues {
 public:
  CachedValues(ResolvedBlock& block, Dtype compute) : compute_(compute), out_(block) {
    producer_.assign(num_values(), kNoNode);
    for (size_t n = 0; n < nodes().size(); ++n) {
      for (const ValueId v : nodes()[n].outputs) producer_[v] = n;
      runs_by_position_.push_back(runs_by_position(nodes()[n]));
    }
  }

  void run() {
    for (size_t n = 0; n < nodes().size(); ++n)
      if (takes_cache(nodes()[n])) choose(n);
    do find_left_to_cache();
    while (drop_a_choice());
  }

 private:
  static constexpr size_t kNoNode = static_cast<size_t>(-1);

  std::vector<Node>& nodes() { return out_.nodes; }
  size_t num_values() const { return out_.block.values.size(); }
  const Op& op_of(uint32_t index) const { return out_.block.ops[index]; }

  // True if each row of the value on this rank has all positions, in order.
  bool has_whole_rows(ValueId v) const {
    const GraphValue& value = out_.block.values[v];
    const auto divides = [](const Sharding& sharding) {
      return sharding.is_chunk || (sharding.kind == Sharding::Kind::kShard && sharding.dim == CHASSIS_DIM_TIME);
    };
    return value.dims.size() >= 2 && value.dims[0] == CHASSIS_DIM_BATCH && value.dims[1] == CHASSIS_DIM_TIME &&
           std::ranges::none_of(value.sharding, divides);
  }

  // True if the node computes each position of its outputs from that position of its inputs alone.
  bool runs_by_position(const Node& node) const {
    const auto by_position = [&](uint32_t index) {
      const Op& op = op_of(index);
      const OpPlacement placement = op.spec().placement;
      return (placement == OpPlacement::kPointwise || placement == OpPlacement::kLinear ||
              placement == OpPlacement::kChannelScale || placement == OpPlacement::kConcat) &&
             !op.spec().is_choice && op.changes_at_length() == 0;
    };
    const auto is_whole = [&](ValueId v) { return v == kAbsent || has_whole_rows(v); };
    return node.provider != nullptr && node.num_calls == 1 && std::ranges::all_of(node.ops, by_position) &&
           std::ranges::all_of(node.inputs, is_whole) && std::ranges::all_of(node.outputs, is_whole);
  }

  // True for an attention whose keys and values are those of whole rows. Its output may not be written to their memory,
  // since the cache may own it.
  bool takes_cache(const Node& node) const {
    if (node.provider == nullptr || node.num_calls != 1 || node.ops.size() != 1) return false;
    const Op& op = op_of(node.ops[0]);
    if (!op.spec().is_attention()) return false;
    for (const char* divided : {kQueryPart, kKeyPart, kRing})
      if (op.attr(divided) != nullptr) return false;
    return has_whole_rows(node.inputs[1]) && has_whole_rows(node.inputs[2]) && node.overwritten_input != 1 &&
           node.overwritten_input != 2;
  }

  uint64_t bytes_of(ValueId v) const {
    const Dtype dtype = dtype_of(out_.block.values[v], compute_);
    return static_cast<uint64_t>(numel(Shape(out_.value_shapes[v])) * size_bytes(dtype));
  }
  // The batch has a field for the new positions only.
  bool is_field(ValueId v) const {
    return std::ranges::any_of(out_.block.fields, [&](const auto& field) { return field.second == v; });
  }

  // A value is on the side of the source if attention needs it for all positions, a node if it computes such values
  // again. The values that are cut are cached; their capacity is their bytes.
  void choose(size_t attention) {
    Node& node = nodes()[attention];
    const size_t source = 0, sink = 1, first_value = 2, first_node = first_value + num_values();
    MinCut graph(first_node + nodes().size());
    const auto again = [&](ValueId v) { return producer_[v] != kNoNode && runs_by_position_[producer_[v]]; };
    for (ValueId v = 0; v < num_values(); ++v) {
      const bool may_be_cached = has_whole_rows(v) && !is_field(v);
      graph.add_edge(first_value + v, again(v) ? first_node + producer_[v] : sink,
                     may_be_cached ? bytes_of(v) : MinCut::kUncut);
    }
    for (size_t n = 0; n < attention; ++n) {
      if (!runs_by_position_[n]) continue;
      for (const ValueId v : nodes()[n].inputs)
        if (v != kAbsent) graph.add_edge(first_node + n, first_value + v, MinCut::kUncut);
    }
    for (const size_t i : {1, 2}) graph.add_edge(source, first_value + node.inputs[i], MinCut::kUncut);
    const std::vector<uint8_t> side = graph.run(source, sink);
    uint64_t bytes = 0;
    for (ValueId v = 0; v < num_values(); ++v) {
      if (!side[first_value + v] || (again(v) && side[first_node + producer_[v]])) continue;
      node.cached.push_back(v);
      bytes += bytes_of(v);
    }
    for (size_t n = 0; n < attention; ++n)
      if (side[first_node + n]) node.computed_from_cache.push_back(n);
    if (bytes * kLeastSaving > bytes_of(node.inputs[1]) + bytes_of(node.inputs[2])) forget(node);
  }

  static void forget(Node& node) {
    node.cached.clear();
    node.computed_from_cache.clear();
  }

  // Finds the nodes of which only attention needs the outputs, and needs them for all positions.
  void find_left_to_cache() {
    std::vector<uint8_t> again(nodes().size());
    for (const Node& node : nodes())
      for (const size_t n : node.computed_from_cache) again[n] = 1;
    for (size_t n = nodes().size(); n-- > 0;)
      nodes()[n].is_left_to_cache =
          again[n] != 0 && std::ranges::none_of(nodes()[n].outputs, [&](ValueId v) { return is_needed(v); });
  }
  bool is_needed(ValueId v) const {
    for (const auto& [name, output] : out_.block.outputs)
      if (output == v) return true;
    return std::ranges::any_of(out_.nodes, [&](const Node& reader) {
      if (std::ranges::find(reader.cached, v) != reader.cached.end()) return true;
      for (size_t i = 0; i < reader.inputs.size(); ++i) {
        const bool is_key_or_value = !reader.cached.empty() && (i == 1 || i == 2);
        if (reader.inputs[i] == v && !reader.is_left_to_cache && !is_key_or_value) return true;
      }
      return false;
    });
  }

  // Drops the choice of an attention whose cached values are not all there when it runs. Returns false if there is
  // none.
  bool drop_a_choice() {
    for (size_t n = 0; n < nodes().size(); ++n) {
      const auto is_gone = [&](ValueId v) { return dies_before(n, v); };
      if (std::ranges::none_of(nodes()[n].cached, is_gone)) continue;
      forget(nodes()[n]);
      return true;
    }
    return false;
  }
  bool dies_before(size_t n, ValueId v) const {
    return std::any_of(out_.nodes.begin(), out_.nodes.begin() + static_cast<std::ptrdiff_t>(n), [&](const Node& node) {
      const std::vector<ValueId>& dead = node.dead_after_forward;
      return !node.is_left_to_cache && std::ranges::find(dead, v) != dead.end();
    });
  }

  const Dtype compute_;
  ResolvedBlock& out_;
  std::vector<size_t> producer_;           // by value; kNoNode: an input or a field
  std::vector<uint8_t> runs_by_position_;  // by node
};

}  // namespace

void find_cached_values(ResolvedBlock& block, Dtype compute) { CachedValues(block, compute).run(); }

}  // namespace chassis
