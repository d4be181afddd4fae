// Matches patterns, asks providers for claims, and creates the kernels of the claimed nodes.
#include "host/compile/resolve.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/kernel_tiles.hpp"
#include "host/compile/node_description.hpp"
#include "host/compile/parameters.hpp"
#include "host/compile/row_pieces.hpp"
#include "host/graph/op_pattern.hpp"
#include "host/graph/op_table.hpp"
#include "host/graph/output_names.hpp"
#include "host/graph/rewrite.hpp"
#include "host/plugin/instance.hpp"
#include "host/plugin/status.hpp"
#include "host/state/dtype.hpp"

namespace chassis {
namespace {

std::string hex(uint32_t bits) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%x", bits);
  return text;
}

class BlockResolver {
 public:
  BlockResolver(const Program& program, const ProgramLayout& layout, const ResolveOptions& options, ResolvedBlock& out)
      : program_(program), layout_(layout), options_(options), out_(out) {}

  void run() {
    keep_needed_outputs();
    if (options_.purpose == Purpose::kReference) drop_adapters();
    if (options_.purpose != Purpose::kTraining) drop_ops_of_training();
    drop_dead_ops(block());
    find_gradients();
    for (size_t at = 0; at < block().ops.size();) at += make_node_at(at);
    for (const GraphValue& value : block().values)
      out_.value_shapes.push_back(layout_.local_shape(program_, value, options_.planned(program_)));
  }

 private:
  BlockType& block() { return out_.block; }

  void keep_needed_outputs() {
    if (options_.purpose != Purpose::kTraining) drop_router_values();
    if (options_.purpose != Purpose::kLogits) {
      block().outputs.erase(kLogitsOutput);
      return;
    }
    if (!block().outputs.contains(kLogitsOutput)) return;
    for (const char* name : {kLossOutput, kTokenLogpsOutput, kTopLogpsOutput, kScoresOutput})
      block().outputs.erase(name);
  }

  // Loads of experts are those of training, and so are the losses that balance them.
  void drop_router_values() {
    const auto is_of_router = [](const auto& entry) { return entry.first.starts_with(kRouterPrefix); };
    std::erase_if(block().outputs, is_of_router);
    std::erase_if(block().inputs, is_of_router);
  }

  // Readers of a value that an adapter replaced read the recorded one.
  void drop_adapters() {
    for (size_t i = 0; i < block().ops.size(); ++i) {
      const Op& op = block().ops[i];
      if (!op.bypass) continue;
      if (*op.bypass == kAbsent)
        throw config_error("the adapter cannot be left out for the reference: op " + op.id.text() + " '" + op.name +
                           "' of block '" + block().name + "' replaces a value that it does not read")
            .hint("set reference.path to the directory of the model, which makes a frozen copy");
      replace_uses(block(), op.outputs[0], op.inputs[*op.bypass], i + 1);
    }
  }

  // Replaces the output of such an op by its first input, because nothing is trained.
  void drop_ops_of_training() {
    for (size_t i = 0; i < block().ops.size(); ++i)
      if (block().ops[i].spec().is_random || block().ops[i].is_training_term)
        replace_uses(block(), block().ops[i].outputs[0], block().ops[i].inputs[0], i + 1);
  }

  void find_gradients() {
    auto& needs = out_.value_needs_grad;
    needs.assign(block().values.size(), 0);
    if (options_.purpose != Purpose::kTraining) return;
    for (const auto& [name, value] : block().inputs) needs[value] = out_.inputs_need_grad;
    for (const Op& op : block().ops) {
      if (op.is_detached) continue;
      bool any = false;
      for (ValueId v : op.inputs) any |= v != kAbsent && needs[v];
      for (SlotId s : op.params) any |= out_.slot_trainable[s] != 0;
      for (ValueId v : op.outputs) needs[v] = any && block().values[v].type != GraphValueType::kInt32;
    }
  }

  // Makes a node of the op at `at` and as many ops after it as its provider takes. Returns the number of ops.
  size_t make_node_at(size_t at) {
    if (block().ops[at].is_collective()) {
      out_.nodes.push_back(make_node(at, 1));
      finish_gradients(out_.nodes.back());
      return 1;
    }
    std::vector<Refusal> refusals;
    if (block().ops[at].spec().is_attention())
      if (size_t taken = offer_in_order(options_.attention, at, refusals)) return taken;
    if (size_t taken = offer_in_order(options_.kernels, at, refusals)) return taken;
    throw unclaimed_error(block().ops[at], refusals);
  }

  size_t offer_in_order(std::span<const OpsProvider> providers, size_t at, std::vector<Refusal>& refusals) {
    for (size_t begin = 0, end = 0; begin < providers.size(); begin = end) {
      end = begin + 1;
      if (providers[begin].is_candidate)
        while (end < providers.size() && providers[end].is_candidate) ++end;
      if (size_t taken = offer(providers.subspan(begin, end - begin), at, refusals)) return taken;
    }
    return 0;
  }

  // Offers ops to one provider, or to several that compete. The longest claimed pattern wins, then its cheapest claim.
  size_t offer(std::span<const OpsProvider> providers, size_t at, std::vector<Refusal>& refusals) {
    std::vector<std::pair<size_t, const OpsProvider*>> patterns;  // number of ops, provider
    for (const OpsProvider& provider : providers)
      for (uint32_t i = 0; i < provider.table->num_patterns; ++i)
        if (const auto pattern = ops_of_pattern(view_of(provider.table->patterns[i])); matches(pattern, at))
          patterns.emplace_back(pattern.size(), &provider);
    std::stable_sort(patterns.begin(), patterns.end(), [](auto& a, auto& b) { return a.first > b.first; });
    std::vector<Node> claimed;
    for (const auto& [num_ops, provider] : patterns) {
      const bool is_decided = !claimed.empty() && (!provider->is_candidate || num_ops < claimed.front().ops.size());
      if (is_decided) break;
      if (auto node = ask_for_claim(*provider, at, num_ops, refusals)) claimed.push_back(std::move(*node));
    }
    if (claimed.empty()) return 0;
    out_.nodes.push_back(choose(std::move(claimed)));
    Node& node = out_.nodes.back();
    node.refusals = std::move(refusals);
    create_kernel(node);
    return node.ops.size();
  }

  // The node as this provider would run it; nothing if it refuses.
  std::optional<Node> ask_for_claim(const OpsProvider& provider, size_t at, size_t num_ops,
                                    std::vector<Refusal>& refusals) {
    Node node = make_node(at, num_ops);
    node.provider = &provider;
    node.site = &call_site("provider '" + provider.name + "'", node.name);
    const PluginCall call(*node.site, "claim");
    NodeDescription view(program_, layout_of(node), block(), node, out_.value_needs_grad, out_.slot_trainable,
                         options_);
    chassis_status_t* status =
        call_plugin([&] { return provider.table->claim(provider.self, view.get(), &node.cost_ns); });
    if (status && status_code(status) == CHASSIS_UNIMPLEMENTED) {
      refusals.push_back({provider.name, node.pattern, status_text(status)});
      status_release(status);
      return std::nullopt;
    }
    const std::string context = "provider '" + provider.name + "' on " + node.name;
    throw_if_failed(status, context);
    if (std::isnan(node.cost_ns))
      throw plugin_error(context + ": claim gives nan as its cost, expected nanoseconds (0: unknown)");
    node.cost_ns *= static_cast<double>(node.num_calls);
    if (std::string reason = refusal_by_infer(node, view, context); !reason.empty()) {
      refusals.push_back({provider.name, node.pattern, std::move(reason)});
      return std::nullopt;
    }
    return node;
  }

  // Why a node that its provider claims is refused nevertheless; empty if it is not. Asks infer only if the answer
  // matters.
  std::string refusal_by_infer(Node& node, const NodeDescription& view, const std::string& context) {
    const std::optional<ValueId> inner = inner_output(node);
    if (!inner && !options_.shared_limit_bytes) return "";
    infer(node, view, context);
    if (inner && !node.flag(CHASSIS_KERNEL_INNER_OUTPUTS))
      return "does not write '" + block().values[*inner].name + "', which is also read elsewhere";
    return tile_refusal(node, has_backward(node), options_);
  }

  // A value between the ops of a run that leaves the node, since something else reads it.
  std::optional<ValueId> inner_output(const Node& node) {
    const auto& last = block().ops[node.ops.back()].outputs;
    for (const ValueId v : node.outputs)
      if (std::find(last.begin(), last.end(), v) == last.end()) return v;
    return std::nullopt;
  }

  void infer(Node& node, const NodeDescription& view, const std::string& context) {
    node.infer = {};
    node.infer.struct_size = sizeof(node.infer);
    const PluginCall call(*node.site, "infer");
    throw_if_failed(
        call_plugin([&] { return node.provider->table->infer(node.provider->self, view.get(), &node.infer); }),
        context);
    node.tiles = tiles_of(node.infer, context);
    node.infer.tiles = nullptr;
  }

  // A provider sees the sizes of one call.
  const ProgramLayout& layout_of(const Node& node) {
    if (node.num_calls == 1) return layout_;
    const auto& name = std::get<std::string>(*block().ops[node.ops[0]].attr(kPieces));
    return piece_layouts_.try_emplace(name, layout_.of_piece(name)).first->second;
  }

  // Chooses the cheapest. Unknown costs come last; equal costs are ordered by name.
  static Node choose(std::vector<Node> claimed) {
    const auto rank = [](const Node& node) {
      return std::make_tuple(!(node.cost_ns > 0), std::max(node.cost_ns, 0.0), std::string_view(node.provider->name));
    };
    std::stable_sort(claimed.begin(), claimed.end(), [&](const Node& a, const Node& b) { return rank(a) < rank(b); });
    Node chosen = claimed.front();
    if (chosen.provider->is_candidate)
      for (const Node& node : claimed) chosen.candidates.push_back({node.provider->name, std::max(node.cost_ns, 0.0)});
    return chosen;
  }

  bool matches(const std::vector<std::string>& pattern, size_t at) {
    const auto& ops = block().ops;
    if (at + pattern.size() > ops.size()) return false;
    std::set<ValueId> seen;
    for (size_t i = 0; i < pattern.size(); ++i) {
      const Op& op = ops[at + i];
      if (op.id.text() != pattern[i]) return false;
      if (pattern.size() > 1 && op.attr(kPieces) != nullptr) return false;  // its calls have other sizes
      const bool joined =
          std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId v) { return seen.count(v) != 0; });
      if (i > 0 && !joined) return false;
      for (ValueId v : op.inputs)
        if (v != kAbsent) seen.insert(v);
      seen.insert(op.outputs.begin(), op.outputs.end());
    }
    return true;
  }

  Node make_node(size_t at, size_t count) {
    Node node;
    node.comm = block().ops[at].comm();
    for (size_t i = at; i < at + count; ++i)
      for (const auto* values : {&block().ops[i].inputs, &block().ops[i].outputs})
        for (ValueId v : *values) node.has_logits |= v != kAbsent && program_.is_logits(block().values[v]);
    std::set<ValueId> made;
    for (size_t i = at; i < at + count; ++i) {
      const Op& op = block().ops[i];
      node.ops.push_back(static_cast<uint32_t>(i));
      node.pattern += (i > at ? "+" : "") + op.id.text();
      node.name = node.name.empty() ? block().name + "." + op.name : node.name + "+" + op.name;
      for (ValueId v : op.inputs) {
        if (made.count(v)) continue;
        const bool known = std::find(node.inputs.begin(), node.inputs.end(), v) != node.inputs.end();
        if (count == 1 || (!known && v != kAbsent)) node.inputs.push_back(v);
      }
      for (SlotId s : op.params)
        if (count == 1 || std::find(node.params.begin(), node.params.end(), s) == node.params.end())
          node.params.push_back(s);
      made.insert(op.outputs.begin(), op.outputs.end());
    }
    if (block().ops[at].attr(kPieces) != nullptr) node.num_calls = static_cast<int>(kRowPieces);
    for (size_t i = at; i < at + count; ++i)
      for (ValueId v : block().ops[i].outputs)
        if (count == 1 || used_after(v, at + count)) node.outputs.push_back(v);
    return node;
  }

  bool used_after(ValueId value, size_t end) {
    for (const auto& [name, output] : block().outputs)
      if (output == value) return true;
    for (size_t i = end; i < block().ops.size(); ++i) {
      const auto& inputs = block().ops[i].inputs;
      if (std::find(inputs.begin(), inputs.end(), value) != inputs.end()) return true;
    }
    return false;
  }

  void create_kernel(Node& node) {
    const OpsProvider& provider = *node.provider;
    const NodeDescription view(program_, layout_of(node), block(), node, out_.value_needs_grad, out_.slot_trainable,
                               options_);
    const std::string context = "provider '" + provider.name + "' on " + node.name;
    if (node.infer.struct_size == 0) infer(node, view, context);  // not asked with the claim
    check_infer(node, context);
    if (node.flag(CHASSIS_KERNEL_FORWARD_BACKWARD) && !provider.table->forward_backward)
      throw plugin_error(context + ": infer sets FORWARD_BACKWARD, but the provider offers no forward_backward");
    void* kernel = nullptr;
    const PluginCall call(*node.site, "create_kernel");
    throw_if_failed(call_plugin([&] { return provider.table->create_kernel(provider.self, view.get(), &kernel); }),
                    context);
    node.kernel =
        std::shared_ptr<void>(kernel, [table = provider.table, self = provider.self, site = node.site](void* k) {
          const PluginCall call(*site, "destroy_kernel");
          if (table->destroy_kernel) guarded_end([&] { table->destroy_kernel(self, k); });
        });
    finish_gradients(node);
    const bool composed = node.flag(CHASSIS_KERNEL_COMPOSED);
    if (!node.has_backward || composed) return;
    const bool any_input = std::count(node.input_needs_grad.begin(), node.input_needs_grad.end(), 1) > 0;
    const bool any_param =
        std::any_of(node.params.begin(), node.params.end(), [&](SlotId s) { return out_.slot_trainable[s] != 0; });
    if (any_input && !provider.table->backward_inputs)
      throw plugin_error(context + ": claimed for training, but offers no backward_inputs");
    if (any_param && !provider.table->backward_params)
      throw plugin_error(context + ": claimed for training, but offers no backward_params");
  }

  static void check_infer(const Node& node, const std::string& context) {
    const chassis_infer_t& infer = node.infer;
    constexpr uint32_t kFlags = CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS |
                                CHASSIS_KERNEL_COMPOSED | CHASSIS_KERNEL_FORWARD_BACKWARD |
                                CHASSIS_KERNEL_HOST_WORKSPACE | CHASSIS_KERNEL_LOG_SUM | CHASSIS_KERNEL_INNER_OUTPUTS;
    if (const uint32_t unknown = infer.flags & ~kFlags; unknown != 0)
      throw plugin_error(context + ": infer sets flags " + hex(unknown) + ", which this host does not know; it knows " +
                         hex(kFlags));
    if (node.flag(CHASSIS_KERNEL_LOG_SUM) &&
        (node.flag(CHASSIS_KERNEL_COMPOSED) || infer.num_saved == 0 || (infer.keeps_outputs & 1u) == 0))
      throw plugin_error(
          context + ": infer promises log sums, which needs a backward of its own that reads output 0 and saved 0");
    if (node.flag(CHASSIS_KERNEL_COMPOSED) && node.flag(CHASSIS_KERNEL_HOST_WORKSPACE))
      throw plugin_error(context +
                         ": infer sets COMPOSED and HOST_WORKSPACE; autograd runs the forward of a composed "
                         "kernel again, and has no workspace for it");
    if (infer.overwrites_inputs != 0 && !node.flag(CHASSIS_KERNEL_HOST_OUTPUTS))
      throw plugin_error(context +
                         ": infer overwrites inputs without HOST_OUTPUTS; the host lends memory of an input only "
                         "as an output that it allocates");
    constexpr uint64_t kMaxBytes = uint64_t{1} << 50;
    for (const uint64_t bytes : {infer.workspace_forward_bytes, infer.workspace_backward_bytes})
      if (bytes > kMaxBytes)
        throw plugin_error(context + ": infer asks for " + std::to_string(bytes) +
                           " bytes of workspace; the maximum is " + std::to_string(kMaxBytes));
    if (infer.num_saved > std::size(infer.saved))
      throw plugin_error(context + ": infer declares " + std::to_string(infer.num_saved) +
                         " saved tensors; the maximum is 4");
    for (uint32_t i = 0; i < infer.num_saved; ++i) {
      const chassis_saved_t& saved = infer.saved[i];
      const auto refuse = [&](const std::string& what) {
        return plugin_error(context + ": infer gives saved tensor " + std::to_string(i) + " " + what);
      };
      if (size_bytes(static_cast<Dtype>(saved.dtype)) == 0)
        throw refuse("the unknown dtype " + std::to_string(saved.dtype));
      if (saved.num_dims > std::size(saved.sizes))
        throw refuse(std::to_string(saved.num_dims) + " dims; the maximum is " +
                     std::to_string(std::size(saved.sizes)));
      for (uint32_t d = 0; d < saved.num_dims; ++d)
        if (saved.sizes[d] < 0) throw refuse("the size " + std::to_string(saved.sizes[d]));
    }
  }

  void finish_gradients(Node& node) {
    for (ValueId v : node.inputs) node.input_needs_grad.push_back(v != kAbsent && out_.value_needs_grad[v]);
    node.has_backward = has_backward(node);
  }

  bool has_backward(const Node& node) const {
    return std::ranges::any_of(node.outputs, [&](ValueId v) { return out_.value_needs_grad[v] != 0; });
  }

  UnclaimedOp unclaimed_error(const Op& op, const std::vector<Refusal>& refusals) {
    const bool is_attention = op.spec().is_attention();
    const auto has_refused = [&](const OpsProvider& provider) {
      return std::ranges::any_of(refusals, [&](const Refusal& r) { return r.provider == provider.name; });
    };
    std::string text = "no provider computes " + op.id.text() + " '" + block().name + "." + op.name + "'";
    for (const Refusal& r : refusals) text += "\n  " + r.provider + " (" + r.pattern + "): " + r.reason;
    if (is_attention)
      for (const OpsProvider& provider : options_.attention)
        if (!has_refused(provider))
          text += "\n  " + provider.name + ": named in [attention], but does not offer attention";
    if (std::ranges::none_of(options_.kernels, has_refused)) {
      const bool any_auto = std::ranges::any_of(options_.kernels, &OpsProvider::is_candidate);
      if (!is_attention)
        text += ": none of the plugins in [kernels] offers " + op.id.text();
      else if (any_auto)
        text += "\n  [kernels], which is asked next: \"auto\" there compares no providers of attention";
      else
        text += "\n  [kernels], which is asked next: no plugin there offers attention";
    }
    const bool by_auto = options_.attention.empty() || options_.attention.front().is_candidate;
    const std::string what = !is_attention ? "add a plugin that offers it to [kernels] plugins"
                             : by_auto     ? "name a plugin that claims it in attention.plugin"
                                           : "set attention.plugin = \"auto\", or name a plugin there that claims it";
    UnclaimedOp error(op.id, is_attention ? options_.attention_where : options_.kernels_where, text);
    error.hint(what + "; `chassis plugins list` shows those of kind ops");
    return error;
  }

  const Program& program_;
  const ProgramLayout& layout_;
  const ResolveOptions& options_;
  ResolvedBlock& out_;
  std::map<std::string, ProgramLayout> piece_layouts_;  // by axis
};

}  // namespace

OpsProvider ops_provider(const Instance& instance) {
  return {.name = instance.id(),
          .self = instance.get(),
          .table = &instance.interface<chassis_ops_t>(CHASSIS_OPS_ID),
          .tracked = instance.library().manifest().tier == Tier::kT0};
}

bool Node::keeps_input(size_t i) const {
  if (!provider) return comm == CommOp::kLogSumExp;
  return flag(CHASSIS_KERNEL_COMPOSED) || (i < 32 && (infer.keeps_inputs >> i & 1u));
}

bool Node::keeps_output(size_t i) const {
  if (!provider) return comm == CommOp::kLogSumExp;
  return !flag(CHASSIS_KERNEL_COMPOSED) && i < 32 && (infer.keeps_outputs >> i & 1u);
}

uint64_t Node::saved_bytes() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < infer.num_saved; ++i) {
    uint64_t bytes = static_cast<uint64_t>(size_bytes(static_cast<Dtype>(infer.saved[i].dtype)));
    for (uint32_t d = 0; d < infer.saved[i].num_dims; ++d) bytes *= static_cast<uint64_t>(infer.saved[i].sizes[d]);
    sum += bytes;
  }
  return sum * static_cast<uint64_t>(num_calls);
}

ResolvedBlock resolve_block(const Program& program, const ProgramLayout& layout, uint32_t type,
                            std::span<const uint8_t> slot_trainable, bool inputs_need_grad,
                            const ResolveOptions& options) {
  ResolvedBlock resolved;
  resolved.type = type;
  resolved.block = program.blocks[type];
  resolved.slot_trainable.assign(slot_trainable.begin(), slot_trainable.end());
  resolved.inputs_need_grad = inputs_need_grad;
  BlockResolver(program, layout, options, resolved).run();
  return resolved;
}

ResolvedProgram resolve_program(const Program& program, const ProgramLayout& layout, const ParameterTable& parameters,
                                const ResolveOptions& options) {
  ResolvedProgram resolved;
  resolved.purpose = options.purpose;
  const bool training = options.purpose == Purpose::kTraining;
  std::map<std::tuple<uint32_t, std::vector<uint8_t>, bool>, std::shared_ptr<const ResolvedBlock>> known;
  bool anything_trained = false;  // in the units so far, so that gradients must reach them
  size_t unit = 0;
  for (const Chain& chain : program.chains)
    for (uint32_t type : chain.blocks) {
      std::vector<uint8_t> trainable;
      for (const Parameter* p : parameters.of_unit(unit)) trainable.push_back(training && p->trainable);
      auto& block = known[{type, trainable, anything_trained}];
      if (!block)
        block =
            std::make_shared<ResolvedBlock>(resolve_block(program, layout, type, trainable, anything_trained, options));
      resolved.units.push_back(block);
      anything_trained |= std::count(trainable.begin(), trainable.end(), 1) > 0;
      ++unit;
    }
  return resolved;
}

}  // namespace chassis
