// Lays out blocks and nodes as lines of text.
#include "host/compile/graph_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "host/base/units.hpp"
#include "host/compile/kernel_tiles.hpp"

namespace chassis {
namespace {

class GraphText {
 public:
  GraphText(const Program& program, const ProgramLayout& layout, const ResolveOptions& options)
      : program_(program), layout_(layout), options_(options) {}

  void block(const ResolvedBlock& block, const std::string& where) {
    text_ += "block " + block.block.name + " (" + where + ")\n";
    for (const auto& [name, value] : block.block.inputs) text_ += "  in   " + shown(block, value, name) + "\n";
    name_width_ = pattern_width_ = 0;
    for (const Node& node : block.nodes) {
      name_width_ = std::max(name_width_, short_name(block, node).size());
      pattern_width_ = std::max(pattern_width_, node.pattern.size());
    }
    for (const Node& node : block.nodes) this->node(block, node);
    for (const auto& [name, value] : block.block.outputs) text_ += "  out  " + shown(block, value, name) + "\n";
    text_ += "  keeps " + bytes_text(block.kept_bytes + block.saved_bytes) + " for backward (" +
             bytes_text(block.kept_bytes) + " values, " + bytes_text(block.saved_bytes) + " saved), workspace " +
             bytes_text(block.workspace_bytes) + "\n";
  }

  std::string take() { return std::move(text_); }

 private:
  void node(const ResolvedBlock& block, const Node& node) {
    text_ += "  " + padded(short_name(block, node), name_width_) + padded(node.pattern, pattern_width_) +
             padded(node.provider ? node.provider->name : "(collective)", 12);
    for (size_t i = 0; i < node.outputs.size(); ++i) text_ += (i ? ", " : " -> ") + shown(block, node.outputs[i], "");
    std::string notes;
    if (node.overwritten_input >= 0) notes += " in place of input " + std::to_string(node.overwritten_input);
    if (node.flag(CHASSIS_KERNEL_COMPOSED)) notes += " composed";
    if (const AttrValue* const axis = block.block.ops[node.ops[0]].attr(kRing))
      notes += " keys and values around " + std::get<std::string>(*axis);
    for (const uint32_t op : node.ops)
      if (block.block.ops[op].is_own()) notes += " " + mixed_dims_text(program_, block.block.ops[op]);
    if (node.num_calls > 1) notes += " in two pieces of each row";
    if (!node.tiles.empty()) notes += " " + tile_note(node);
    if (node.is_recomputed) notes += " again in backward";
    if (node.infer.num_saved && node.has_backward) notes += " saves " + std::to_string(node.infer.num_saved);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.has_backward && node.keeps_input(i)) notes += " keeps in" + std::to_string(i);
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.has_backward && node.keeps_output(i)) notes += " keeps out" + std::to_string(i);
    text_ += (notes.empty() ? "" : "  ;" + notes) + "\n";
    if (!node.candidates.empty()) text_ += "      auto: " + comparison(node) + "\n";
    for (const Refusal& refusal : node.refusals)
      text_ += "      refused by " + refusal.provider + " (" + refusal.pattern + "): " + refusal.reason + "\n";
  }

  // "tile 64 × 32 with 48 KiB of shared memory in forward, 80 KiB in backward"
  static std::string tile_note(const Node& node) {
    const chassis_tile_t& tile = node.tiles[node.infer.tile];
    return "tile " + tile_text(tile) + " with " + bytes_text(tile.shared_forward_bytes) +
           " of shared memory in forward" +
           (node.has_backward ? ", " + bytes_text(tile.shared_backward_bytes) + " in backward" : "");
  }

  // "interval 0.82 ms is the cheapest; sdpa 1.6 ms"
  static std::string comparison(const Node& node) {
    const Candidate& chosen = node.candidates.front();
    if (node.candidates.size() == 1) return costed(chosen) + " alone claims " + node.pattern;
    const bool is_cheaper = chosen.cost_ns > 0 && chosen.cost_ns != node.candidates[1].cost_ns;
    std::string text = costed(chosen);
    text += is_cheaper ? " is the cheapest" : " is the first by name of those that cost the same";
    for (size_t i = 1; i < node.candidates.size(); ++i) text += (i > 1 ? ", " : "; ") + costed(node.candidates[i]);
    return text;
  }

  static std::string costed(const Candidate& candidate) {
    return candidate.provider +
           (candidate.cost_ns > 0 ? fmt::format(" {:.3g} ms", candidate.cost_ns / 1e6) : " (cost unknown)");
  }

  std::string shown(const ResolvedBlock& block, ValueId id, const std::string& name) {
    const GraphValue& value = block.block.values[id];
    const auto shape = layout_.local_shape(program_, value, options_.planned(program_));
    std::string text = (name.empty() ? "" : name + " ") + std::string("[");
    for (size_t i = 0; i < shape.size(); ++i)
      text += (i ? ", " : "") + program_.dims[value.dims[i]].name + "=" + std::to_string(shape[i]);
    return text + "]";
  }

  static std::string short_name(const ResolvedBlock& block, const Node& node) {
    return node.name.substr(block.block.name.size() + 1);
  }

  static std::string padded(std::string text, size_t width) {
    if (text.size() < width) text.resize(width, ' ');
    return text + " ";
  }

  const Program& program_;
  const ProgramLayout& layout_;
  const ResolveOptions& options_;
  std::string text_;
  size_t name_width_ = 0, pattern_width_ = 0;
};

}  // namespace

std::string graph_text(const CompiledProgram& compiled) {
  const Program& program = compiled.program();
  const ResolvedProgram& resolved = compiled.resolved(Purpose::kTraining);
  GraphText text(program, compiled.layout(), compiled.options());
  std::set<const ResolvedBlock*> shown;
  size_t unit = 0;
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i, ++unit) {
      const ResolvedBlock* block = resolved.units[unit].get();
      if (!shown.insert(block).second) continue;
      const auto times = std::count_if(resolved.units.begin(), resolved.units.end(),
                                       [&](const auto& other) { return other.get() == block; });
      text.block(*block, "chain " + chain.name + ", " + std::to_string(times) + (times == 1 ? " unit" : " units"));
    }
  return "passes\n" + chassis::text(compiled.reports(Purpose::kTraining)) + text.take();
}

}  // namespace chassis
