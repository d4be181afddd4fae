// Chooses the kept values by a minimum cut, then finds the lifetimes of a backward that runs nodes again.
#include "host/compile/selective.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "host/compile/layout_pass.hpp"
#include "host/compile/liveness.hpp"
#include "host/compile/min_cut.hpp"
#include "host/graph/op_table.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

constexpr size_t kNoNode = static_cast<size_t>(-1);

class Selection {
 public:
  Selection(const ResolvedBlock& block, Dtype compute) : compute_(compute), out_(block) {
    producer_.assign(num_values(), kNoNode);
    is_output_.assign(num_values(), 0);
    for (size_t n = 0; n < nodes().size(); ++n)
      for (ValueId v : nodes()[n].outputs) producer_[v] = n;
    for (const auto& [name, value] : out_.block.outputs) is_output_[value] = 1;
  }

  ResolvedBlock run() {
    choose_kept();
    find_forward_lifetimes();
    schedule_backward();
    find_backward_lifetimes();
    sum_bytes();
    return std::move(out_);
  }

 private:
  // A run of a node in backward.
  struct Step {
    size_t node;
    bool again;  // true: its forward; false: its backward
  };

  std::vector<Node>& nodes() { return out_.nodes; }
  size_t num_values() const { return out_.block.values.size(); }

  uint64_t bytes_of(ValueId v) const {
    for (const auto& [name, field] : out_.block.fields)
      if (field == v) return 0;  // the micro-batch holds it
    const Dtype dtype = dtype_of(out_.block.values[v], compute_);
    return static_cast<uint64_t>(numel(Shape(out_.value_shapes[v])) * size_bytes(dtype));
  }

  static std::vector<ValueId> read_by_forward(const Node& node) {
    std::vector<ValueId> read = node.inputs;
    std::erase(read, kAbsent);
    return read;
  }
  static std::vector<ValueId> read_by_backward(const Node& node) {
    std::vector<ValueId> read;
    if (!node.has_backward) return read;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.keeps_input(i) && node.inputs[i] != kAbsent) read.push_back(node.inputs[i]);
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.keeps_output(i)) read.push_back(node.outputs[i]);
    return read;
  }

  // As in AOTAutograd (He & Yu 2023). A value is on the side of the source if backward needs it, a node if it runs
  // again. The values that are cut are kept; their capacity is their bytes.
  void choose_kept() {
    const size_t source = 0, sink = 1, first_value = 2, first_node = first_value + num_values();
    MinCut graph(first_node + nodes().size());
    std::vector<uint8_t> cheap;
    for (const Node& node : nodes()) cheap.push_back(is_cheap(out_.block, node));
    for (ValueId v = 0; v < num_values(); ++v) {
      const bool again = producer_[v] != kNoNode && cheap[producer_[v]];
      graph.add_edge(first_value + v, again ? first_node + producer_[v] : sink, bytes_of(v));
    }
    for (size_t n = 0; n < nodes().size(); ++n) {
      for (ValueId v : read_by_backward(nodes()[n])) graph.add_edge(source, first_value + v, MinCut::kUncut);
      if (!cheap[n]) continue;
      for (ValueId v : read_by_forward(nodes()[n])) graph.add_edge(first_node + n, first_value + v, MinCut::kUncut);
      if (nodes()[n].has_backward) graph.add_edge(source, first_node + n, nodes()[n].saved_bytes());
    }
    const std::vector<uint8_t> side = graph.run(source, sink);
    for (Node& node : nodes()) node.recomputed_before_backward.clear(), node.dead_after_recompute.clear();
    for (size_t n = 0; n < nodes().size(); ++n) nodes()[n].is_recomputed = side[first_node + n] != 0;
    out_.kept.clear();
    is_kept_.assign(num_values(), 0);
    for (ValueId v = 0; v < num_values(); ++v) {
      if (!side[first_value + v] || (producer_[v] != kNoNode && nodes()[producer_[v]].is_recomputed)) continue;
      is_kept_[v] = 1;
      out_.kept.push_back(v);
    }
  }

  void find_forward_lifetimes() {
    std::vector<size_t> last_use = producer_;
    if (!nodes().empty())
      for (const auto& [name, value] : out_.block.inputs) last_use[value] = 0;
    for (size_t n = 0; n < nodes().size(); ++n) {
      nodes()[n].dead_after_forward.clear();
      for (ValueId v : read_by_forward(nodes()[n])) last_use[v] = n;
    }
    for (ValueId v = 0; v < num_values(); ++v)
      if (last_use[v] != kNoNode && !is_kept_[v] && !is_output_[v])
        nodes()[last_use[v]].dead_after_forward.push_back(v);
    for (Node& node : nodes()) node.overwritten_input = overwritable_input(out_.block, node, node.dead_after_forward);
  }

  void schedule_backward() {
    std::vector<uint8_t> done(nodes().size());
    for (size_t n = nodes().size(); n-- > 0;) {
      if (!nodes()[n].has_backward) continue;
      for (ValueId v : read_by_backward(nodes()[n])) recompute_value(v, n, done);
      if (nodes()[n].is_recomputed) run_again(n, n, done);
      steps_.push_back({n, false});
    }
  }
  void recompute_value(ValueId v, size_t before, std::vector<uint8_t>& done) {
    if (!is_kept_[v]) run_again(producer_[v], before, done);
  }
  void run_again(size_t n, size_t before, std::vector<uint8_t>& done) {
    if (std::exchange(done[n], 1)) return;
    for (ValueId v : read_by_forward(nodes()[n])) recompute_value(v, before, done);
    nodes()[before].recomputed_before_backward.push_back(n);
    steps_.push_back({n, true});
  }

  void find_backward_lifetimes() {
    for (Node& node : nodes()) node.dead_after_backward.clear();
    std::vector<uint8_t> seen(num_values());
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      Node& node = nodes()[step->node];
      std::vector<ValueId>& dead = step->again ? node.dead_after_recompute : node.dead_after_backward;
      std::vector<ValueId> values = step->again ? read_by_forward(node) : read_by_backward(node);
      if (step->again) values.insert(values.end(), node.outputs.begin(), node.outputs.end());
      for (ValueId v : values)
        if (!std::exchange(seen[v], 1)) dead.push_back(v);
      if (!step->again) continue;
      std::vector<ValueId> own = dead;
      std::erase_if(own, [&](ValueId v) { return is_kept_[v] && is_output_[v]; });
      node.overwritten_by_recompute = overwritable_input(out_.block, node, own);
    }
  }

  void sum_bytes() {
    out_.kept_bytes = out_.saved_bytes = 0;
    for (ValueId v : out_.kept)
      if (producer_[v] != kNoNode) out_.kept_bytes += bytes_of(v);
    for (const Node& node : nodes())
      if (node.has_backward && !node.is_recomputed) out_.saved_bytes += node.saved_bytes();
  }

  const Dtype compute_;
  ResolvedBlock out_;
  std::vector<size_t> producer_;    // by value; kNoNode: an input or a field
  std::vector<uint8_t> is_output_;  // by value: an output of the block
  std::vector<uint8_t> is_kept_;    // by value
  std::vector<Step> steps_;
};

}  // namespace

bool is_cheap(const BlockType& block, const Node& node) {
  return !node.flag(CHASSIS_KERNEL_FORWARD_BACKWARD) && std::all_of(node.ops.begin(), node.ops.end(), [&](uint32_t op) {
    const OpId& id = block.ops[op].id;
    return id.is_collective() ? comm_spec(id.comm()).is_cheap : id.spec().is_cheap;
  });
}

ResolvedBlock recompute_selectively(const ResolvedBlock& block, Dtype compute) {
  return Selection(block, compute).run();
}

std::optional<ResolvedBlock> block_in_mode(const ResolvedBlock& block, BlockRecompute mode, Dtype compute) {
  if (mode == BlockRecompute::kSelective) return recompute_selectively(block, compute);
  return std::nullopt;
}

uint64_t held_bytes(const ResolvedBlock& block, BlockRecompute mode, Dtype compute) {
  if (!spec_of(mode).keeps_frame) return block.choice_bytes;
  const std::optional<ResolvedBlock> changed = block_in_mode(block, mode, compute);
  const ResolvedBlock& running = changed ? *changed : block;
  return running.kept_bytes + running.saved_bytes;
}

void find_selective_liveness(ResolvedProgram& resolved, Dtype compute) {
  resolved.selective.assign(resolved.recompute.size(), nullptr);
  std::map<std::pair<const ResolvedBlock*, BlockRecompute>, std::shared_ptr<const ResolvedBlock>>
      known;  // units share blocks
  for (size_t unit = 0; unit < resolved.recompute.size(); ++unit) {
    const BlockRecompute mode = resolved.recompute[unit];
    if (mode == BlockRecompute::kNone) continue;
    auto& made = known[{resolved.units[unit].get(), mode}];
    if (!made)
      if (auto changed = block_in_mode(*resolved.units[unit], mode, compute))
        made = std::make_shared<ResolvedBlock>(std::move(*changed));
    resolved.selective[unit] = made;
  }
}

}  // namespace chassis
