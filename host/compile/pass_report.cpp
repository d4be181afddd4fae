// Counts what each pass did, and formats the reports.
#include "host/compile/pass_report.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "host/base/log.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

using Reports = std::vector<PassReport>;

template <class Count>
std::string counted(Count count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// In program order, each once, since units share blocks.
std::vector<const ResolvedBlock*> distinct_blocks(const ResolvedProgram& resolved) {
  std::vector<const ResolvedBlock*> blocks;
  for (size_t unit = 0; unit < resolved.units.size(); ++unit)
    if (const ResolvedBlock* block = &resolved.running(unit); std::ranges::find(blocks, block) == blocks.end())
      blocks.push_back(block);
  return blocks;
}

}  // namespace

Reports report_of_record(const Program& program) {
  size_t num_ops = 0, num_slots = 0;
  for (const BlockType& block : program.blocks) num_ops += block.ops.size(), num_slots += block.slots.size();
  Reports reports = {{"record", "",
                      counted(program.num_units(), "unit") + " of " + counted(program.blocks.size(), "block type") +
                          " with " + counted(num_ops, "op") + " and " + counted(num_slots, "parameter")}};
  for (const BlockType& block : program.blocks)
    for (const Op& op : block.ops)
      if (op.is_own())
        reports.push_back({"record", block.name + "." + op.name,
                           op.id.text() + " " + mixed_dims_text(program, op) +
                               (block.needs_all_of(op, CHASSIS_DIM_TIME)
                                    ? "; generation that reads it computes the whole row for each token"
                                    : "")});
  return reports;
}

Reports report_of_layout(const Program& program, const ProgramLayout& layout) {
  if (layout.axes.empty()) return {{"layout", "", "no axis divides the computation"}};
  Reports reports;
  for (size_t a = 0; a < layout.axes.size(); ++a) {
    const LayoutAxis& axis = layout.axes[a];
    size_t num_divided = 0;
    std::map<std::string, size_t> collectives;
    for (const BlockType& block : program.blocks) {
      num_divided +=
          static_cast<size_t>(std::count_if(block.slots.begin(), block.slots.end(), [&](const ParameterSlot& slot) {
            return slot.sharding[a].kind == Sharding::Kind::kShard;
          }));
      for (const Op& op : block.ops)
        if (const AttrValue* of = op.attr("axis"); op.is_collective() && of && *of == AttrValue(axis.name))
          ++collectives[op.id.text().substr(kCommPrefix.size())];
    }
    std::string inserted;
    for (const auto& [op, count] : collectives)
      inserted += (inserted.empty() ? "" : ", ") + std::to_string(count) + " × " + op;
    const std::string divided = num_divided == 0 ? "positions" : counted(num_divided, "parameter");
    reports.push_back({"layout", axis.name,
                       "divides " + divided + " by " + std::to_string(axis.size) + " and inserts " +
                           (inserted.empty() ? "no collective" : inserted)});
    if (const size_t count = axis.adapter_linears_without_ring; count > 0) {
      counted_warning("adapter linears without a ring",
                      "overlap along '" + axis.name + "': the linears of adapters keep their gathers and scatters",
                      count);
      reports.push_back({"layout", axis.name, "makes no ring for " + counted(count, "linear") + " of adapters"});
    }
  }
  return reports;
}

Reports report_of_providers(const ResolvedProgram& resolved, const ResolveOptions& options) {
  size_t num_nodes = 0;
  std::map<const OpsProvider*, size_t> claimed;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> refused;
  for (const ResolvedBlock* block : distinct_blocks(resolved))
    for (const Node& node : block->nodes) {
      if (!node.provider) continue;  // a collective
      ++num_nodes, ++claimed[node.provider];
      for (const Refusal& r : node.refusals) ++refused[{r.provider, r.pattern, r.reason}];
    }
  Reports reports;
  for (const auto* providers : {&options.attention, &options.kernels})
    for (const OpsProvider& provider : *providers)
      reports.push_back({"providers", provider.name,
                         "computes " + std::to_string(claimed[&provider]) + " of " + counted(num_nodes, "node")});
  for (const auto& [refusal, count] : refused) {
    const auto& [provider, pattern, reason] = refusal;
    reports.push_back({"providers", provider, "refuses " + std::to_string(count) + " × " + pattern + ": " + reason});
  }
  return reports;
}

Reports report_of_recompute(const ResolvedProgram& resolved, const Recompute& recompute, const std::string& reason) {
  if (resolved.purpose != Purpose::kTraining) return {{"recompute", "", "nothing is kept for a backward"}};
  const auto units = [&](BlockRecompute mode) {
    return std::count(resolved.recompute.begin(), resolved.recompute.end(), mode);
  };
  std::ptrdiff_t full = 0;
  std::string partly;
  for (const RecomputeModeSpec& spec : kRecomputeModes) {
    const std::ptrdiff_t count = units(spec.mode);
    if (!spec.keeps_frame) full += count;
    if (!spec.nodes_again.empty() && count > 0)
      partly +=
          ", " + std::to_string(count) + " only " + (count == 1 ? "its " : "their ") + std::string(spec.nodes_again);
  }
  return {{"recompute", "",
           text(recompute) + ": " + std::to_string(full) + " of " + counted(resolved.units.size(), "unit") +
               (full == 1 ? " runs" : " run") + " forward again" + partly + (reason.empty() ? "" : "; " + reason)}};
}

Reports report_of_liveness(const ResolvedProgram& resolved) {
  Reports reports;
  for (const ResolvedBlock* block : distinct_blocks(resolved)) {
    std::set<ValueId> used;
    for (const Node& node : block->nodes)
      for (const auto* values : {&node.inputs, &node.outputs}) used.insert(values->begin(), values->end());
    used.erase(kAbsent);
    const auto in_place = std::count_if(block->nodes.begin(), block->nodes.end(),
                                        [](const Node& node) { return node.overwritten_input >= 0; });
    reports.push_back({"liveness", block->block.name,
                       std::to_string(block->kept.size()) + " of " + counted(used.size(), "value") +
                           " live until backward, " + counted(in_place, "output") + " in place of an input"});
  }
  return reports;
}

Reports report_of_cache(const ResolvedProgram& resolved, const ResolveOptions& options) {
  if (resolved.purpose != Purpose::kLogits) return {};
  Reports reports;
  for (const ResolvedBlock* block : distinct_blocks(resolved)) {
    const auto bytes_of = [&](std::span<const ValueId> values) {
      int64_t bytes = 0;
      for (const ValueId v : values)
        bytes += numel(Shape(block->value_shapes[v])) * size_bytes(dtype_of(block->block.values[v], options.compute));
      return std::to_string(bytes / (options.batch * options.time));
    };
    for (const Node& node : block->nodes)
      if (!node.cached.empty())
        reports.push_back({"cache", node.name,
                           "holds " + bytes_of(node.cached) + " bytes of each position in place of " +
                               bytes_of(std::span(node.inputs).subspan(1, 2)) + ", and " +
                               counted(node.computed_from_cache.size(), "node") + " run again for each token"});
  }
  if (reports.empty()) reports.push_back({"cache", "", "holds all keys and values"});
  return reports;
}

std::string text(const Reports& reports) {
  std::string out;
  for (const PassReport& r : reports) {
    std::string pass = r.pass;
    pass.resize(std::max<size_t>(pass.size(), 9), ' ');
    out += "  " + pass + " " + (r.subject.empty() ? "" : r.subject + ": ") + r.what + "\n";
  }
  return out;
}

}  // namespace chassis
