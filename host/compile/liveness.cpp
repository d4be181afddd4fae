// Lifetimes follow from the nodes that make, read and keep each value.
#include "host/compile/liveness.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/compile/layout_pass.hpp"
#include "host/graph/op_table.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

constexpr size_t kNever = static_cast<size_t>(-1);
constexpr int64_t kMaxBytes = int64_t{1} << 56;

bool is_input(const BlockType& block, ValueId v) {
  for (const auto& [name, value] : block.inputs)
    if (value == v) return true;
  for (const auto& [name, value] : block.fields)
    if (value == v) return true;
  return false;
}

bool is_aliased(const BlockType& block, ValueId v) {
  for (const Op& op : block.ops) {
    if (!op.spec().is_view && !op.is_collective()) continue;
    if (std::find(op.inputs.begin(), op.inputs.end(), v) != op.inputs.end()) return true;
    if (std::find(op.outputs.begin(), op.outputs.end(), v) != op.outputs.end()) return true;
  }
  return false;
}

class BlockLiveness {
 public:
  BlockLiveness(const Program& program, const ProgramLayout& layout, const ResolveOptions& options, ResolvedBlock& out)
      : program_(program), layout_(layout), options_(options), out_(out) {}

  void run() {
    clear();
    find_lifetimes();
    sum_bytes();
  }

 private:
  const BlockType& block() const { return out_.block; }

  void clear() {
    out_.kept.clear();
    for (Node& node : out_.nodes) {
      node.overwritten_input = -1;
      node.dead_after_forward.clear();
      node.dead_after_backward.clear();
      node.shifts_after_backward.clear();
      node.is_recomputed = false;
      node.recomputed_before_backward.clear();
    }
  }

  void find_lifetimes() {
    auto& nodes = out_.nodes;
    const size_t num_values = block().values.size();
    std::vector<size_t> last_use(num_values, 0), first_keeper(num_values, kNever), producer(num_values, kNever);
    std::vector<size_t> first_use(num_values, kNever);
    std::vector<uint8_t> is_output(num_values, 0);  // by value
    for (const auto& [name, value] : block().outputs) is_output[value] = 1;
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (ValueId v : nodes[n].outputs) last_use[v] = n, producer[v] = n;
      for (ValueId v : nodes[n].inputs)
        if (v != kAbsent) last_use[v] = n, first_use[v] = std::min(first_use[v], n);
    }
    for (size_t n = 0; n < nodes.size(); ++n)
      if (nodes[n].comm == CommOp::kShift) nodes[first_use[nodes[n].outputs[0]]].shifts_after_backward.push_back(n);
    for (size_t n = 0; n < nodes.size(); ++n) {
      Node& node = nodes[n];
      if (!node.has_backward) continue;
      auto keep = [&](ValueId v) {
        if (v == kAbsent) return;
        if (const size_t chunk = producer[v]; chunk != kNever && nodes[chunk].comm == CommOp::kChunk) {
          node.recomputed_before_backward.push_back(chunk);
          node.dead_after_backward.push_back(v);
          nodes[chunk].is_recomputed = true;
          v = nodes[chunk].inputs[0];
        }
        if (first_keeper[v] == kNever) first_keeper[v] = n;
      };
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.keeps_input(i)) keep(node.inputs[i]);
      for (size_t i = 0; i < node.outputs.size(); ++i)
        if (node.keeps_output(i)) keep(node.outputs[i]);
    }
    for (ValueId v = 0; v < num_values; ++v) {
      const bool used = producer[v] != kNever || last_use[v] > 0 || is_input(v);
      if (!used) continue;
      if (first_keeper[v] != kNever) {
        out_.kept.push_back(v);
        nodes[first_keeper[v]].dead_after_backward.push_back(v);
      } else if (!is_output[v] && !nodes.empty()) {
        nodes[last_use[v]].dead_after_forward.push_back(v);
      }
    }
    for (Node& node : nodes) node.overwritten_input = overwritable_input(block(), node, node.dead_after_forward);
  }

  bool is_input(ValueId v) const { return chassis::is_input(block(), v); }

  uint64_t bytes_of(ValueId v) {
    const GraphValue& value = block().values[v];
    int64_t bytes = size_bytes(dtype_of(value, options_.compute));
    const Shape shape(layout_.local_shape(program_, value, options_.planned(program_)));
    if (__builtin_mul_overflow(bytes, numel(shape), &bytes) || bytes > kMaxBytes)
      throw config_error("value '" + value.name + "' of block '" + block().name + "' is " + chassis::text(shape) +
                         ", more than 2^56 bytes")
          .hint("lower train.seq_len or train.micro_batch_size");
    return static_cast<uint64_t>(bytes);
  }

  void sum_bytes() {
    out_.kept_bytes = out_.saved_bytes = out_.input_bytes = out_.choice_bytes = out_.peak_forward_bytes =
        out_.workspace_bytes = 0;
    for (ValueId v : out_.kept)
      if (!is_input(v)) out_.kept_bytes += bytes_of(v);
    for (const auto& [name, value] : block().inputs) out_.input_bytes += bytes_of(value);
    uint64_t live = 0;
    for (const Node& node : out_.nodes) {
      if (is_choice(block(), node)) out_.choice_bytes += bytes_of(node.outputs[0]);
      if (node.has_backward) out_.saved_bytes += node.saved_bytes();
      if (node.overwritten_input < 0)
        for (ValueId v : node.outputs) live += bytes_of(v);
      out_.workspace_bytes =
          std::max({out_.workspace_bytes, node.infer.workspace_forward_bytes, node.infer.workspace_backward_bytes});
      out_.peak_forward_bytes = std::max(out_.peak_forward_bytes, live + node.infer.workspace_forward_bytes);
      for (ValueId v : node.dead_after_forward)
        if (!is_input(v) && !(node.overwritten_input >= 0 && node.inputs[node.overwritten_input] == v))
          live -= std::min(live, bytes_of(v));
    }
  }

  const Program& program_;
  const ProgramLayout& layout_;
  const ResolveOptions& options_;
  ResolvedBlock& out_;
};

}  // namespace

bool is_choice(const BlockType& block, const Node& node) {
  return node.ops.size() == 1 && block.ops[node.ops[0]].spec().is_choice;
}

void find_liveness(const Program& program, const ProgramLayout& layout, const ResolveOptions& options,
                   ResolvedBlock& block) {
  BlockLiveness(program, layout, options, block).run();
}

int overwritable_input(const BlockType& block, const Node& node, std::span<const ValueId> dead) {
  if (node.comm == CommOp::kSum || node.comm == CommOp::kPut) return node.inputs[1] == kAbsent ? -1 : 1;
  if (!node.provider || !node.flag(CHASSIS_KERNEL_HOST_OUTPUTS) || node.outputs.empty()) return -1;
  for (size_t i = 0; i < node.inputs.size() && i < 32; ++i) {
    const ValueId v = node.inputs[i];
    if (!(node.infer.overwrites_inputs >> i & 1u) || v == kAbsent || is_input(block, v)) continue;
    if (std::find(dead.begin(), dead.end(), v) == dead.end()) continue;
    if (std::count(node.inputs.begin(), node.inputs.end(), v) != 1 || is_aliased(block, v)) continue;
    const GraphValue &in = block.values[v], &out = block.values[node.outputs[0]];
    if (in.dims == out.dims && in.type == out.type && in.sharding == out.sharding) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace chassis
