// Adds ops after each choice of experts, and passes a running value from the first block with a router to the last one.
#include "host/compile/router_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "chassis/router_sums.hpp"
#include "host/base/error.hpp"
#include "host/graph/op_table.hpp"
#include "host/graph/output_names.hpp"
#include "host/graph/recording.hpp"
#include "host/graph/rewrite.hpp"

namespace chassis {
namespace {

// The loss of its routers that a model records.
struct Balance {
  double aux_weight = 0.0;
  std::string form = "layers";
  bool operator==(const Balance&) const = default;
};

bool chooses(const Op& op) { return op.spec().is_choice; }
bool has_router(const BlockType& block) { return std::ranges::any_of(block.ops, chooses); }

Balance take_balance(Op& router) {
  Balance balance;
  if (const AttrValue* weight = router.attr(kAuxWeightAttr)) balance.aux_weight = std::get<double>(*weight);
  if (const AttrValue* form = router.attr(kBalanceAttr)) balance.form = std::get<std::string>(*form);
  std::erase_if(router.attrs,
                [](const auto& attr) { return attr.first == kAuxWeightAttr || attr.first == kBalanceAttr; });
  return balance;
}

class RouterPass {
 public:
  RouterPass(Program& program, const RouterRequest& request) : program_(program), request_(request) {}

  std::string run() {
    take_balances();
    const bool has_losses = aux_weight_ > 0 || request_.z_weight > 0;
    if (num_routers_ == 0) {
      if (request_.aux_weight.value_or(0) > 0 || request_.z_weight > 0)
        throw refusal("the model has no experts, so its routers cannot have a loss")
            .hint("leave model.router_aux_weight and model.router_z_weight out");
      return "the program has no router";
    }
    if (!has_losses && !request_.measures) return "the losses of routers are off";
    if (!has_losses) {
      for (BlockType& block : program_.blocks) rewrite(block, Place{});
      return fmt::format("measures the loads of {} routers; their losses are off: model.router_aux_weight turns one on",
                         num_routers_);
    }
    if (const BlockType& last = *program_.last_block(); !last.outputs.contains(kLossOutput))
      throw refusal(fmt::format("the routers have a loss of weight {:g}, which is added to the cross entropy of "
                                "tokens, and this objective has none",
                                std::max(aux_weight_, request_.z_weight)))
          .hint(
              "set model.router_aux_weight = 0 and leave model.router_z_weight out, or set train.task = \"sft\" or "
              "\"pretrain\"");
    pass_on();
    return fmt::format(
        "measures the loads of {} routers, and adds their auxiliary loss ({}; {} if all loads are equal) with weight "
        "{:g}, and their z-loss with weight {:g}",
        num_routers_, balance_.form, is_joint() ? chosen_ : static_cast<int64_t>(num_routers_), aux_weight_,
        request_.z_weight);
  }

 private:
  // The place of a block in the order of units.
  struct Place {
    bool after_router = false, is_last = false, passes_on = false;
    bool operator<(const Place& other) const { return key() < other.key(); }
    std::tuple<bool, bool, bool> key() const { return {after_router, is_last, passes_on}; }
  };

  bool is_joint() const { return balance_.form == "layers"; }
  Error refusal(const std::string& why) const { return {ExitCode::kConfig, request_.where, why}; }

  void take_balances() {
    std::vector<size_t> routers_of(program_.blocks.size());
    bool is_first = true;
    for (size_t type = 0; type < program_.blocks.size(); ++type)
      for (Op& op : program_.blocks[type].ops) {
        if (!chooses(op)) continue;
        const Balance balance = take_balance(op);
        if (!std::exchange(is_first, false) && balance != balance_)
          throw plugin_error("block '" + program_.blocks[type].name + "', op " + op.id.text() + " '" + op.name +
                             "': the routers of a model record the same aux_weight and balance");
        balance_ = balance;
        ++routers_of[type];
      }
    for (const Chain& chain : program_.chains)
      for (const uint32_t type : chain.blocks) num_routers_ += routers_of[type];
    aux_weight_ = request_.aux_weight.value_or(balance_.aux_weight);
  }

  // Blocks between the first router and the last block pass the running value on. A block type on both sides of the
  // first router becomes two.
  void pass_on() {
    const std::vector<BlockType> recorded = program_.blocks;
    std::map<std::pair<uint32_t, Place>, uint32_t> types;
    std::vector<uint8_t> is_used(recorded.size());
    const std::vector<uint32_t>& last_chain = program_.chains.back().blocks;
    bool after_router = false;
    for (Chain& chain : program_.chains)
      for (uint32_t& type : chain.blocks) {
        const bool routes = has_router(recorded[type]);
        const Place place{after_router, &type == &last_chain.back(), after_router || routes};
        after_router |= routes;
        const auto [known, is_new] = types.try_emplace({type, place}, type);
        if (is_new && std::exchange(is_used[type], 1) != 0) {
          known->second = static_cast<uint32_t>(program_.blocks.size());
          program_.blocks.push_back(recorded[type]);
          program_.blocks.back().name = recorded[type].name + "-router";
        }
        if (is_new) rewrite(program_.blocks[known->second], place);
        type = known->second;
      }
  }

  void rewrite(BlockType& block, const Place& place) {
    std::optional<ValueId> running;
    if (place.after_router) {
      running = block.add_value({kRouterBalance, running_dims_, GraphValueType::kFloat32, {}});
      block.inputs[kRouterBalance] = *running;
    }
    std::vector<Op> recorded = std::exchange(block.ops, {});
    size_t number = 0;
    for (Op& op : recorded) {
      block.ops.push_back(std::move(op));
      if (!chooses(block.ops.back())) continue;
      const ValueId sums = measure(block, Op(block.ops.back()), number++);
      if (!place.passes_on) continue;
      const ValueId part = is_joint() ? sums : loss_of(block, sums, num_routers_);
      running = running ? add(block, *running, part, kRouterBalance) : part;
      running_dims_ = block.values[part].dims;
    }
    if (!running) return;
    if (!place.is_last) {
      block.outputs[kRouterBalance] = *running;
      return;
    }
    ValueId& loss = block.outputs.at(kLossOutput);
    loss = add(block, loss, is_joint() ? loss_of(block, *running, 1) : *running, kLossOutput);
    block.ops.back().is_training_term = true;
  }

  // Adds the op that sums what the router chose, and returns its sums.
  ValueId measure(BlockType& block, const Op& router, size_t number) {
    const ValueId logits = router.inputs[0], experts = router.outputs[0];
    const int64_t num_experts = program_.dims[block.values[logits].dims.back()].size;
    chosen_ = program_.dims[block.values[experts].dims.back()].size;
    const DimId sums =
        record_dim(program_, fmt::format("router_sums_of_{}", num_experts), RouterSumsPlaces{num_experts}.size());
    Op op = make_op(program_, block, "router_stats", router.name + ".stats", {logits, experts}, {}, {sums});
    op.is_detached = aux_weight_ == 0 && request_.z_weight == 0;
    const std::string behind = number == 0 ? "" : fmt::format(".{}", number);
    if (request_.measures) {
      block.outputs[kRouterSumsOutput + behind] = op.outputs[0];
      block.outputs[kRouterLargestOutput + behind] = op.outputs[1];
    }
    if (is_joint() && !running_dims_.empty() && block.values[op.outputs[0]].dims != running_dims_)
      throw refusal(fmt::format("the auxiliary loss is one of all layers together, but block '{}' has another "
                                "number of experts, {}, than a block before it",
                                block.name, num_experts))
          .hint("set model.router_aux_weight = 0");
    block.ops.push_back(std::move(op));
    return block.ops.back().outputs[0];
  }

  // `num_addends`: of these losses one is the sum. The z-loss is a mean over layers, whatever the form of the other.
  ValueId loss_of(BlockType& block, ValueId sums, size_t num_addends) {
    const std::vector<DimId> dims = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME};
    if (!block.fields.contains("labels")) {
      program_.fields.emplace("labels", Field{GraphValueType::kInt32, dims});
      block.fields["labels"] = block.add_value({"labels", dims, GraphValueType::kInt32, {}});
    }
    Op op;
    op.id = OpId("load_balance");
    op.name = "load_balance";
    op.inputs = {sums, block.fields.at("labels")};
    op.attrs = {{"chosen", chosen_},
                {kAuxWeightAttr, aux_weight_},
                {"z_weight", request_.z_weight / static_cast<double>(num_addends)},
                {kBalanceAttr, balance_.form},
                {"ignore_index", int64_t{kIgnoreLabel}}};
    infer_outputs(program_, block, op, {});
    block.ops.push_back(std::move(op));
    return block.ops.back().outputs[0];
  }

  ValueId add(BlockType& block, ValueId a, ValueId b, const char* name) {
    block.ops.push_back(make_op(program_, block, "add", name, {a, b}, {}, {}));
    return block.ops.back().outputs[0];
  }

  Program& program_;
  const RouterRequest& request_;
  Balance balance_;
  double aux_weight_ = 0.0;
  size_t num_routers_ = 0;           // of all units
  int64_t chosen_ = 1;               // experts of a token, of the last router so far
  std::vector<DimId> running_dims_;  // of the running value
};

}  // namespace

std::string add_router_losses(Program& program, const RouterRequest& request) {
  return RouterPass(program, request).run();
}

}  // namespace chassis
