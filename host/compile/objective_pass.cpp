// Replaces the outputs of the last block, and drops the head that nothing reads any more.
#include "host/compile/objective_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/graph/op_table.hpp"
#include "host/graph/recording.hpp"
#include "host/graph/rewrite.hpp"

namespace chassis {
namespace {

class ObjectivePass {
 public:
  explicit ObjectivePass(Program& program) : program_(program), block_(*program.last_block()) {}

  std::string run(const ObjectiveRequest& request) {
    std::string what;
    switch (request.output) {
      case ObjectiveOutput::kLoss:
        what = add_loss();
        break;
      case ObjectiveOutput::kTokenLogps:
        refuse_aux_loss();
        block_.outputs[kTokenLogpsOutput] = add_after_logits("token_logp")[0];
        what = "adds the log-probabilities of labels";
        break;
      case ObjectiveOutput::kTopLogps:
        refuse_aux_loss();
        what = add_top_logps(request);
        break;
      case ObjectiveOutput::kScores:
        refuse_aux_loss();
        what = add_scores(request.num_scores);
        break;
    }
    block_.outputs.erase(kHiddenOutput);
    block_.outputs.erase(kAuxLossOutput);
    drop_unread();
    if (!program_.left_out.empty()) what += "; leaves out " + program_.left_out.front();
    return what;
  }

 private:
  std::optional<ValueId> output(const char* name) const {
    const auto found = block_.outputs.find(name);
    return found == block_.outputs.end() ? std::nullopt : std::optional(found->second);
  }

  ValueId field(const char* name, std::vector<DimId> dims) {
    if (const auto known = block_.fields.find(name); known != block_.fields.end()) return known->second;
    program_.fields.emplace(name, Field{GraphValueType::kInt32, dims});
    return block_.fields[name] = block_.add_value({name, std::move(dims), GraphValueType::kInt32, {}});
  }

  // Adds an op over logits and labels right after the op that makes the logits, so that a provider can take both.
  // Returns its outputs.
  std::vector<ValueId> add_after_logits(const char* id, std::optional<ValueId> ids = {}, OpAttrs attrs = {}) {
    const std::optional<ValueId> logits = output(kLogitsOutput);
    if (!logits)
      throw config_error("the model has no head over a vocabulary: its last block '" + block_.name +
                         "' has no output \"" + kLogitsOutput + "\"")
          .hint("train.task = \"reward\" or \"classify\" trains scores");
    std::vector<ValueId> inputs = {*logits, field("labels", {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME})};
    if (ids) inputs.push_back(*ids);
    attrs.emplace_back("ignore_index", int64_t{kIgnoreLabel});
    Op op{OpId(id), id, std::move(inputs), {}, {}, std::move(attrs)};
    infer_outputs(program_, block_, op, {});
    const std::vector<ValueId> made = op.outputs;
    const auto maker = std::ranges::find_if(
        block_.ops, [&](const Op& other) { return std::ranges::count(other.outputs, *logits) > 0; });
    CHASSIS_CHECK(maker != block_.ops.end(), "an op makes the logits");
    block_.ops.insert(maker + 1, std::move(op));
    return made;
  }

  std::string add_loss() {
    const ValueId entropy = add_after_logits("cross_entropy")[0];
    const std::optional<ValueId> aux = output(kAuxLossOutput);
    if (!aux) {
      block_.outputs[kLossOutput] = entropy;
      return "adds the cross entropy of labels";
    }
    Op sum = make_op(program_, block_, "add", "loss", {entropy, *aux}, {}, {});
    block_.outputs[kLossOutput] = sum.outputs[0];
    block_.ops.push_back(std::move(sum));
    return "adds the cross entropy of labels to the model's \"aux_loss\"";
  }

  std::string add_top_logps(const ObjectiveRequest& request) {
    const DimId entries = record_dim(program_, kTeacherDim, request.top_k);
    const ValueId ids = field(kTeacherIds, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, entries});
    const auto made = add_after_logits("topk_logp", ids, {{"temperature", request.temperature}});
    block_.outputs[kTokenLogpsOutput] = made[0];
    block_.outputs[kTopLogpsOutput] = made[1];
    return fmt::format("adds the log-probabilities of labels, and of the {} tokens of a teacher at temperature {:g}",
                       request.top_k, request.temperature);
  }

  std::string add_scores(int64_t num_scores) {
    const std::string wanted = std::to_string(num_scores) + (num_scores == 1 ? " score" : " scores");
    if (const std::optional<ValueId> scores = output(kScoresOutput)) {
      const std::vector<DimId>& dims = block_.values[*scores].dims;
      const int64_t has = dims.size() == 3 ? program_.dims[dims[2]].size : 0;
      if (has != num_scores)
        throw config_error("the model's head gives " + std::to_string(has) + " scores, and the objective needs " +
                           wanted)
            .hint("set num_labels in the options of [objective], or take a model with another head");
      block_.outputs.erase(kLogitsOutput);
      return "trains the model's " + wanted;
    }
    const std::optional<ValueId> hidden = output(kHiddenOutput);
    if (!hidden || block_.values[*hidden].dims.size() != 3)
      throw config_error("the model cannot get a head of scores: its last block '" + block_.name +
                         "' has no output \"" + kHiddenOutput + "\" [B, T, H]")
          .hint("a model plugin outputs what its head reads: b.output(\"hidden\", x)");
    const DimId in = block_.values[*hidden].dims[2], out = record_dim(program_, "labels", num_scores);
    ParameterSlot head;
    head.name = kScoreWeight;
    head.axes = {{out}, {in}};
    head.role = CHASSIS_ROLE_HEAD;
    head.init = CHASSIS_INIT_NORMAL;
    // As in Ouyang et al. 2022: scores begin near N(0, 1) at any width.
    head.init_std = 1.0 / std::sqrt(static_cast<double>(program_.dims[in].size) + 1.0);
    head.of_objective = true;
    Op op = make_op(program_, block_, "score", kScoreWeight, {*hidden}, {block_.add_slot(std::move(head))}, {});
    block_.outputs[kScoresOutput] = op.outputs[0];
    block_.ops.push_back(std::move(op));
    block_.outputs.erase(kLogitsOutput);
    return "adds a head of " + wanted;
  }

  void refuse_aux_loss() const {
    if (output(kAuxLossOutput))
      throw config_error("the model adds a loss of its own (\"aux_loss\" of block '" + block_.name +
                         "') to the cross entropy of tokens, and this objective has none")
          .hint("set train.task = \"sft\" or \"pretrain\"");
  }

  // By parameter: 1 if an op reads it.
  std::vector<uint8_t> read_slots() const {
    std::vector<uint8_t> is_read(block_.slots.size());
    for (const Op& op : block_.ops)
      for (const SlotId slot : op.params) is_read[slot] = 1;
    return is_read;
  }

  // Drops ops whose outputs nothing reads, and then the parameters that only these read.
  void drop_unread() {
    const std::vector<uint8_t> was_read = read_slots();
    drop_dead_ops(block_);
    const std::vector<uint8_t> is_read = read_slots();
    const Chain& chain = program_.chains.back();
    std::vector<SlotId> renumbered(block_.slots.size());
    std::vector<ParameterSlot> slots;
    for (SlotId slot = 0; slot < block_.slots.size(); ++slot) {
      renumbered[slot] = static_cast<SlotId>(slots.size());
      if (was_read[slot] && !is_read[slot])
        program_.left_out.push_back(chain.parameter_name(chain.blocks.size() - 1, block_.slots[slot]));
      else
        slots.push_back(std::move(block_.slots[slot]));
    }
    block_.slots = std::move(slots);
    for (Op& op : block_.ops)
      for (SlotId& slot : op.params) slot = renumbered[slot];
  }

  Program& program_;
  BlockType& block_;
};

}  // namespace

std::string add_objective(Program& program, const ObjectiveRequest& request) {
  const BlockType* const last = program.last_block();
  if (!last || last->outputs.contains(kLossOutput)) return "the program has a loss";
  const auto& outputs = last->outputs;
  if (request.output == ObjectiveOutput::kLoss && !outputs.contains(kLogitsOutput) && !outputs.contains(kScoresOutput))
    return "the program has no head";
  return ObjectivePass(program).run(request);
}

int64_t num_scores(const Program& program) {
  const BlockType* const last = program.last_block();
  if (!last) return 0;
  const auto found = last->outputs.find(kScoresOutput);
  if (found == last->outputs.end()) return 0;
  const std::vector<DimId>& dims = last->values[found->second].dims;
  return dims.empty() ? 0 : program.dims[dims.back()].size;
}

}  // namespace chassis
