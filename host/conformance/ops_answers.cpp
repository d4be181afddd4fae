// Asks claim and infer a second time, offers an unknown attribute, and looks for bits that have no meaning.
#include "host/conformance/ops_answers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "host/compile/kernel_tiles.hpp"
#include "host/compile/node_description.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

// The bits with index `count` and above.
uint32_t bits_beyond(uint32_t bits, size_t count) { return count >= 32 ? 0 : bits >> count << count; }

std::string saved_text(const chassis_saved_t& saved) {
  std::string text = fmt::format("dtype {}, sizes [", saved.dtype);
  for (uint32_t d = 0; d < std::min<size_t>(saved.num_dims, std::size(saved.sizes)); ++d)
    text += fmt::format("{}{}", d == 0 ? "" : ", ", saved.sizes[d]);
  return text + "]";
}

// "64 × 32, shared 49152 and 81920 bytes": the bytes of forward and backward.
std::string whole_tile_text(const chassis_tile_t& tile) {
  return fmt::format("{}, shared {} and {} bytes", tile_text(tile), tile.shared_forward_bytes,
                     tile.shared_backward_bytes);
}

// The first member that differs, with both values; empty if none does.
std::string difference(const chassis_infer_t& first, const chassis_infer_t& again) {
  const auto differs = [](const char* name, auto a, auto b) {
    return a == b ? std::string() : fmt::format("{} was {}, is {}", name, a, b);
  };
  for (const std::string& text :
       {differs("flags", first.flags, again.flags), differs("keeps_inputs", first.keeps_inputs, again.keeps_inputs),
        differs("keeps_outputs", first.keeps_outputs, again.keeps_outputs),
        differs("num_saved", first.num_saved, again.num_saved),
        differs("overwrites_inputs", first.overwrites_inputs, again.overwrites_inputs),
        differs("workspace_forward_bytes", first.workspace_forward_bytes, again.workspace_forward_bytes),
        differs("workspace_backward_bytes", first.workspace_backward_bytes, again.workspace_backward_bytes),
        differs("num_tiles", first.num_tiles, again.num_tiles), differs("tile", first.tile, again.tile)})
    if (!text.empty()) return text;
  for (size_t i = 0; i < std::size(first.saved); ++i)
    if (std::memcmp(&first.saved[i], &again.saved[i], sizeof first.saved[i]) != 0)
      return fmt::format("saved[{}] was {}, is {}", i, saved_text(first.saved[i]), saved_text(again.saved[i]));
  return "";
}

class AskedAgain {
 public:
  AskedAgain(const Node& node, const chassis_node_t* view, const ResolvedBlock& block,
             std::vector<std::string>& failures)
      : node_(node), view_(view), block_(block), failures_(failures) {}

  void run() {
    check_claim();
    check_unknown_attributes();
    check_infer();
    check_tiles();
    check_bits();
  }

 private:
  void fail(const std::string& what) { failures_.push_back(node_.name + ": " + what); }

  void check_claim() {
    double cost = 0;
    if (chassis_status_t* status = node_.provider->table->claim(node_.provider->self, view_, &cost)) {
      fail("claim accepts the node when it is asked first, but not when it is asked again: " + status_text(status));
      status_release(status);
    } else if (cost != node_.cost_ns && (cost > 0 || node_.cost_ns > 0)) {
      fail(fmt::format("claim is not pure: the same node costs {} ns, and {} ns when it is asked again", node_.cost_ns,
                       cost));
    }
  }

  // An attribute changes what an op computes, so one that the provider cannot know must be refused.
  void check_unknown_attributes() {
    constexpr std::string_view kName = "conformance_unknown";
    for (uint32_t i = 0; i < view_->num_ops; ++i) {
      std::vector<chassis_attr_t> attrs(view_->ops[i]->attrs, view_->ops[i]->attrs + view_->ops[i]->num_attrs);
      chassis_attr_t unknown{};
      unknown.name = {kName.data(), kName.size()};
      unknown.tag = CHASSIS_ATTR_INT;
      unknown.value.i = 1;
      attrs.push_back(unknown);
      chassis_op_view_t changed = *view_->ops[i];
      changed.attrs = attrs.data();
      changed.num_attrs = static_cast<uint32_t>(attrs.size());
      std::vector<const chassis_op_view_t*> ops(view_->ops, view_->ops + view_->num_ops);
      ops[i] = &changed;
      chassis_node_t node = *view_;
      node.ops = ops.data();
      double cost = 0;
      chassis_status_t* status = node_.provider->table->claim(node_.provider->self, &node, &cost);
      const std::string op = fmt::format("{} with an attribute '{}'", view_of(changed.id), kName);
      if (!status)
        fail("claim accepts " + op + "; it must refuse attributes that it does not know, since they change the result");
      else if (status_code(status) != CHASSIS_UNIMPLEMENTED)
        fail("claim fails for " + op + ", where it must refuse: " + status_text(status));
      if (status) status_release(status);
    }
  }

  void check_infer() {
    chassis_infer_t again{};
    again.struct_size = sizeof again;
    if (chassis_status_t* status = node_.provider->table->infer(node_.provider->self, view_, &again)) {
      fail("infer answers when it is asked first, but not when it is asked again: " + status_text(status));
      return status_release(status);
    }
    const auto tiles = tiles_of(again, fmt::format("provider '{}' on {}", node_.provider->name, node_.name));
    std::string text = difference(node_.infer, again);
    for (size_t i = 0; text.empty() && i < tiles.size(); ++i)
      if (std::memcmp(&tiles[i], &node_.tiles[i], sizeof tiles[i]) != 0)
        text = fmt::format("tiles[{}] was {}, is {}", i, whole_tile_text(node_.tiles[i]), whole_tile_text(tiles[i]));
    if (!text.empty()) fail("infer is not pure: when it is asked again about the same node, " + text);
  }

  void check_tiles() {
    std::set<std::pair<uint32_t, uint32_t>> known;
    for (const chassis_tile_t& tile : node_.tiles)
      if (!known.emplace(tile.queries, tile.keys).second)
        return fail("infer lists the tile " + tile_text(tile) + " twice");
  }

  void check_bits() {
    const chassis_infer_t& infer = node_.infer;
    const auto beyond = [&](const char* name, uint32_t bits, const char* what, size_t count) {
      if (const uint32_t stray = bits_beyond(bits, count); stray != 0)
        fail(fmt::format("infer sets the bits {:#x} of {}, but the node has only {} {}{}", stray, name, count, what,
                         count == 1 ? "" : "s"));
    };
    beyond("keeps_outputs", infer.keeps_outputs, "output", node_.outputs.size());
    beyond("overwrites_inputs", infer.overwrites_inputs, "input", node_.inputs.size());
    if (infer.struct_size != sizeof infer)
      fail(fmt::format("infer changes struct_size from {} to {}; only the host sets it", sizeof infer,
                       infer.struct_size));
    constexpr chassis_saved_t kNone{};
    for (size_t i = infer.num_saved; i < std::size(infer.saved); ++i)
      if (std::memcmp(&infer.saved[i], &kNone, sizeof kNone) != 0)
        fail(fmt::format("infer describes saved[{}] ({}), but its num_saved is {}", i, saved_text(infer.saved[i]),
                         infer.num_saved));
    const bool is_loss = node_.outputs.size() == 1 && block_.block.values[node_.outputs[0]].dims.empty();
    if (node_.flag(CHASSIS_KERNEL_FORWARD_BACKWARD) && !is_loss)
      fail("infer sets FORWARD_BACKWARD, which is only for nodes whose one output is a loss, a tensor without dims");
  }

  const Node& node_;
  const chassis_node_t* view_;
  const ResolvedBlock& block_;
  std::vector<std::string>& failures_;
};

}  // namespace

std::vector<std::string> answer_failures(const OpsProvider& provider, const Program& program,
                                         const ProgramLayout& layout, const ResolvedBlock& block,
                                         const ResolveOptions& options) {
  std::vector<std::string> failures;
  for (const Node& node : block.nodes) {
    if (!node.provider || node.provider->self != provider.self) continue;
    const NodeDescription view(program, layout, block.block, node, block.value_needs_grad, block.slot_trainable,
                               options);
    AskedAgain(node, view.get(), block, failures).run();
  }
  return failures;
}

}  // namespace chassis
