// Copies each block, lets the plugin extend the copy op by op, and joins equal copies to one block type.
#include "host/compile/adapter_pass.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "chassis/kind/adapter.h"
#include "host/base/error.hpp"
#include "host/graph/op_table.hpp"
#include "host/graph/recording.hpp"
#include "host/graph/rewrite.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

// "model.layers.3.self_attn.q_proj" for "model.layers.3.self_attn.q_proj.weight".
std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

chassis_str_t view(const std::string& text) { return {text.data(), text.size()}; }

// The first op that reads a parameter; NULL if none does.
const Op* reader_of(const BlockType& block, SlotId slot) {
  for (const Op& op : block.ops)
    if (std::find(op.params.begin(), op.params.end(), slot) != op.params.end()) return &op;
  return nullptr;
}

// The values that an adapter has recorded in a block, each with the added parameters on which it depends. Parameters
// behind an op of the model do not count.
using AddedValues = std::map<ValueId, std::set<SlotId>>;

// The builder of one call of extend(): records ops aside, and puts them into the block afterwards.
class OpExtension {
 public:
  OpExtension(Program& program, BlockType& block, size_t op_index, std::string module, AddedValues& added)
      : program_(program), block_(block), index_(op_index), module_(std::move(module)), added_(added) {
    num_slots_ = static_cast<SlotId>(block.slots.size());
    record_.struct_size = sizeof(record_);
    record_.impl = this;
    record_.dim = [](auto* b, chassis_str_t name, int64_t size, chassis_dim_t* out) {
      return guarded([&] { *out = record_dim(self(b).program_, std::string(view_of(name)), size); });
    };
    record_.slot = [](auto* b, const chassis_slot_desc_t* desc, chassis_slot_t* out) {
      return guarded([&] { *out = self(b).slot(read_struct(desc, "the description of a parameter")); });
    };
    record_.op = [](auto* b, const chassis_op_desc_t* desc, chassis_value_t* out) {
      return guarded([&] { *out = self(b).op(read_struct(desc, "the description of an op")); });
    };
    record_.bounded_dim = [](auto*, chassis_str_t, int64_t, chassis_dim_t*) { return refused("bounded_dim"); };
    record_.begin_block = [](auto*, chassis_str_t, chassis_block_t*) { return refused("begin_block"); };
    record_.end_block = [](auto*) { return refused("end_block"); };
    record_.input = [](auto*, chassis_str_t, const chassis_dim_t*, uint32_t, chassis_value_t*) {
      return refused("input");
    };
    record_.field = [](auto*, chassis_str_t, uint32_t, const chassis_dim_t*, uint32_t, chassis_value_t*) {
      return refused("field");
    };
    record_.output = [](auto*, chassis_str_t, chassis_value_t) { return refused("output"); };
    record_.chain = [](auto*, chassis_str_t, chassis_str_t, const chassis_block_t*, uint32_t) {
      return refused("chain");
    };
    table_.struct_size = sizeof(table_);
    table_.impl = this;
    table_.record = &record_;
    table_.replace_input = [](auto* b, chassis_value_t value) {
      return guarded([&] { self(b).replace(self(b).new_input_, value, "replace_input"); });
    };
    table_.replace_output = [](auto* b, chassis_value_t value) {
      return guarded([&] { self(b).replace(self(b).new_output_, value, "replace_output"); });
    };
  }

  const chassis_adapter_builder_t& table() const { return table_; }
  bool is_empty() const { return recorded_.empty() && block_.slots.size() == num_slots_; }

  // Puts the recorded ops into the block. Returns the index after the op and its new ops.
  size_t finish() {
    const ValueId input = base().inputs[0], output = base().outputs[0];
    for (SlotId id = num_slots_; id < block_.slots.size(); ++id)
      if (std::ranges::none_of(recorded_, [&](const Op& op) { return std::ranges::count(op.params, id) > 0; }))
        throw refusal("no recorded op reads the parameter '" + block_.slots[id].name + "'");
    std::set<ValueId> dependents = {output};  // values that need the op's output
    std::vector<Op> before, after;
    for (Op& op : recorded_) {
      const bool needs_output = std::ranges::any_of(op.inputs, [&](ValueId v) { return dependents.contains(v); });
      if (needs_output) dependents.insert(op.outputs.begin(), op.outputs.end());
      (needs_output || !new_input_ ? after : before).push_back(std::move(op));
    }
    if (new_input_) {
      if (dependents.contains(*new_input_)) throw refusal("replace_input gets a value that needs the op's output");
      expect_dims(input, *new_input_, "replace_input");
      mark_bypass(before, *new_input_, input);
      base().inputs[0] = *new_input_;
    }
    if (new_output_) {
      mark_bypass(before, *new_output_, output);
      mark_bypass(after, *new_output_, output);
    }
    const size_t num_before = before.size(), num_after = after.size();
    block_.ops.insert(block_.ops.begin() + static_cast<std::ptrdiff_t>(index_), std::make_move_iterator(before.begin()),
                      std::make_move_iterator(before.end()));
    index_ += num_before;
    if (num_after > 0) insert_after(block_, index_, std::move(after));
    const size_t end = index_ + num_after + 1;
    if (new_output_) {
      expect_dims(output, *new_output_, "replace_output");
      replace_uses(block_, output, *new_output_, end);
    }
    return end;
  }

 private:
  template <typename Table>
  static OpExtension& self(const Table* table) {
    return *static_cast<OpExtension*>(table->impl);
  }
  static chassis_status_t* refused(const char* function) {
    return guarded([&] {
      throw Error(ExitCode::kPlugin,
                  std::string("an adapter records into the block of an op: ") + function + " is for models");
    });
  }

  Op& base() { return block_.ops[index_]; }
  // Notes on the op that makes `value` which of its inputs it replaces.
  static void mark_bypass(std::vector<Op>& ops, ValueId value, ValueId replaced) {
    for (Op& op : ops) {
      if (std::ranges::count(op.outputs, value) == 0) continue;
      const auto at = std::ranges::find(op.inputs, replaced);
      op.bypass = at == op.inputs.end() ? kAbsent : static_cast<uint32_t>(at - op.inputs.begin());
    }
  }
  Error refusal(const std::string& what) { return plugin_error("module '" + module_ + "': " + what); }

  void expect_dims(ValueId from, ValueId to, const std::string& function) {
    const auto &have = block_.values[to].dims, &want = block_.values[from].dims;
    if (have != want)
      throw refusal(function + " gets a value of " + program_.dims_text(have) + ", expected " +
                    program_.dims_text(want));
  }

  SlotId slot(const chassis_slot_desc_t& desc) {
    ParameterSlot slot = record_slot(program_, block_, desc);
    if (!slot.tied_to.empty()) throw refusal("parameter '" + slot.name + "' is tied; an adapter's cannot be");
    slot.name = module_ + "." + slot.name;
    slot.added = true;
    for (const ParameterSlot& other : block_.slots)
      if (other.name == slot.name) throw refusal("already has a parameter '" + slot.name + "'");
    return block_.add_slot(std::move(slot));
  }

  ValueId op(const chassis_op_desc_t& desc) {
    Op op = record_op(program_, block_, desc);
    std::set<SlotId> depends(op.params.begin(), op.params.end());
    for (ValueId v : op.inputs) {
      if (v == kAbsent || v == base().outputs[0] || std::ranges::count(base().inputs, v) > 0) continue;
      const auto known = added_.find(v);
      if (known == added_.end())
        throw refusal("op '" + op.name + "' reads value " + std::to_string(v) +
                      ", which is neither input nor output of the extended op, nor recorded by the adapter");
      depends.insert(known->second.begin(), known->second.end());
    }
    for (SlotId s : op.params)
      if (s < num_slots_)
        throw refusal("op '" + op.name + "' reads parameter '" + block_.slots[s].name +
                      "', which was not recorded for this op");
    for (SlotId s : depends)
      if (s < num_slots_ && std::ranges::count(block_.slots[s].shared_by, module_) == 0)
        block_.slots[s].shared_by.push_back(module_);
    for (ValueId v : op.outputs) added_[v] = depends;
    op.name = base().name + "." + op.name;
    recorded_.push_back(std::move(op));
    return recorded_.back().outputs.front();
  }

  void replace(std::optional<ValueId>& which, ValueId value, const std::string& function) {
    const bool is_recorded = std::ranges::any_of(
        recorded_, [&](const Op& op) { return std::ranges::find(op.outputs, value) != op.outputs.end(); });
    if (!is_recorded) throw refusal(function + " gets value " + std::to_string(value) + ", which no recorded op makes");
    which = value;
  }

  Program& program_;
  BlockType& block_;
  size_t index_;
  std::string module_;  // relative to the block's prefix
  AddedValues& added_;
  SlotId num_slots_ = 0;
  std::vector<Op> recorded_;
  std::optional<ValueId> new_input_, new_output_;
  chassis_builder_t record_{};
  chassis_adapter_builder_t table_{};
};

class Adaptation {
 public:
  Adaptation(const AdapterPlugin& plugin, Program& program, FileNames files, const RewritePass::Report& report)
      : plugin_(plugin), program_(program), recorded_(program.blocks), files_(std::move(files)), report_(report) {
    for (const Chain& chain : program.chains)
      for (size_t i = 0; i < chain.blocks.size(); ++i)
        for (const ParameterSlot& slot : recorded_[chain.blocks[i]].slots)
          if (!slot.tied_to.empty()) tied_[slot.tied_to].push_back(chain.parameter_name(i, slot));
  }

  void run() {
    for (const Chain& chain : program_.chains)
      for (size_t i = 0; i < chain.blocks.size(); ++i)
        for (const ParameterSlot& slot : recorded_[chain.blocks[i]].slots)
          if (slot.tied_to.empty()) slot_is_trained(chain, i, recorded_[chain.blocks[i]], slot);
    std::vector<BlockType> blocks;
    std::map<uint32_t, std::vector<uint32_t>> variants;  // by recorded type
    for (Chain& chain : program_.chains)
      for (size_t i = 0; i < chain.blocks.size(); ++i) {
        const uint32_t type = chain.blocks[i];
        BlockType block = extended(chain, i, recorded_[type]);
        auto& known = variants[type];
        const auto same = std::ranges::find_if(known, [&](uint32_t v) { return same_but_name(blocks[v], block); });
        if (same != known.end()) {
          chain.blocks[i] = *same;
          continue;
        }
        if (!known.empty()) block.name += "-" + std::to_string(known.size() + 1);
        report_block(recorded_[type], block);
        chain.blocks[i] = static_cast<uint32_t>(blocks.size());
        known.push_back(chain.blocks[i]);
        blocks.push_back(std::move(block));
      }
    program_.blocks = std::move(blocks);
    plugin_.finish();
    check_program(program_);
  }

 private:
  static bool same_but_name(const BlockType& a, const BlockType& b) {
    return a.values == b.values && a.slots == b.slots && a.ops == b.ops && a.inputs == b.inputs &&
           a.fields == b.fields && a.outputs == b.outputs;
  }

  static int64_t layer_of(const Chain& chain, size_t index) {
    return chain.prefix.find("{i}") != std::string::npos ? static_cast<int64_t>(index) : -1;
  }

  // The parameter's name in files; a parameter that files join with others has the name of the joined tensor.
  std::string file_name(const std::string& parameter) const {
    const auto found = files_.of.find(parameter);
    return found == files_.of.end() ? parameter : found->second;
  }
  uint32_t num_joined(const std::string& parameter) const {
    const auto found = files_.in_file.find(file_name(parameter));
    return found == files_.in_file.end() ? 1 : static_cast<uint32_t>(found->second.size());
  }

  BlockType extended(const Chain& chain, size_t index, const BlockType& recorded) {
    BlockType block = recorded;
    for (ParameterSlot& slot : block.slots)
      slot.frozen = !slot_is_trained(chain, index, recorded, slot) && !slot.of_objective;
    AddedValues added;
    for (size_t at = 0; at < block.ops.size();) {
      const Op& op = block.ops[at];
      at = op.params.empty() || op.inputs.empty() || op.inputs[0] == kAbsent ? at + 1
                                                                             : extend(chain, index, block, at, added);
    }
    gather_branches(block);
    return block;
  }

  // Moves recorded linears with the same input right after the first of them, such as the A of q, k and v: a provider
  // may compute neighbours as one product.
  static void gather_branches(BlockType& block) {
    const auto is_branch = [&](const Op& op) {
      return op.spec().is_linear() && std::ranges::all_of(op.params, [&](SlotId s) { return block.slots[s].added; });
    };
    const auto begin = block.ops.begin();
    for (size_t first = 0; first < block.ops.size(); ++first) {
      if (!is_branch(block.ops[first])) continue;
      const ValueId input = block.ops[first].inputs[0];
      for (size_t next = first + 1; next < block.ops.size(); ++next)
        if (is_branch(block.ops[next]) && block.ops[next].inputs[0] == input) {
          ++first;
          std::rotate(begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(next),
                      begin + static_cast<std::ptrdiff_t>(next) + 1);
        }
    }
  }

  bool slot_is_trained(const Chain& chain, size_t index, const BlockType& recorded, const ParameterSlot& slot) {
    const std::string own = slot.tied_to.empty() ? chain.parameter_name(index, slot) : slot.tied_to;
    if (const auto known = trained_.find(own); known != trained_.end()) return known->second;
    if (!slot.tied_to.empty()) return false;  // its owner, in a later block, decides
    const auto id = static_cast<SlotId>(std::ranges::find(recorded.slots, slot) - recorded.slots.begin());
    const Op* reader = reader_of(recorded, id);
    const std::string name = file_name(own), module = module_of(name), op = reader ? reader->id.text() : "";
    const std::vector<int64_t> sizes = program_.global_shape(slot);
    std::vector<chassis_str_t> tied;
    for (const std::string& other : tied_[own]) tied.push_back(view(other));
    chassis_adapter_parameter_t parameter{};
    parameter.struct_size = sizeof(parameter);
    parameter.role = slot.role;
    parameter.name = view(name);
    parameter.sizes = sizes.data();
    parameter.num_dims = sizes.size();
    parameter.module = view(module);
    parameter.op = view(op);
    parameter.layer = layer_of(chain, index);
    parameter.tied = tied.data();
    parameter.num_tied = tied.size();
    return trained_[own] = plugin_.trains(parameter);
  }

  // Returns the index of the next recorded op.
  size_t extend(const Chain& chain, size_t index, BlockType& block, size_t at, AddedValues& added) {
    const Op op = block.ops[at];
    const ParameterSlot& weight = block.slots[op.params[0]];
    const std::string name = weight.tied_to.empty() ? chain.parameter_name(index, weight) : weight.tied_to;
    // A tied weight is not in files under this name, but its module is.
    const std::string own = chain.parameter_name(index, weight);
    const std::string module = module_of(weight.tied_to.empty() ? file_name(name) : own);
    std::vector<chassis_adapter_axis_t> axes;
    for (const auto& axis : weight.axes) axes.push_back({axis.data(), axis.size(), program_.dim_product(axis)});
    const std::vector<DimId> input_dims = block.values[op.inputs[0]].dims;
    const std::vector<DimId> output_dims = block.values[op.outputs[0]].dims;
    const bool has_experts = op.spec().placement == OpPlacement::kGroupedLinear;
    const std::vector<DimId> experts_dims = has_experts ? block.values[op.inputs[1]].dims : std::vector<DimId>();
    const std::string block_name = block.name;
    chassis_adapter_op_t offered{};
    offered.struct_size = sizeof(offered);
    offered.role = weight.role;
    offered.op = view(op.id.text());
    offered.name = view(op.name);
    offered.block = view(block_name);
    offered.chain = view(chain.name);
    offered.module = view(module);
    offered.layer = layer_of(chain, index);
    offered.input = op.inputs[0];
    offered.output = op.outputs[0];
    offered.input_dims = input_dims.data();
    offered.num_input_dims = static_cast<uint32_t>(input_dims.size());
    offered.output_dims = output_dims.data();
    offered.num_output_dims = static_cast<uint32_t>(output_dims.size());
    offered.weight_axes = axes.data();
    offered.num_weight_axes = static_cast<uint32_t>(axes.size());
    offered.has_bias = op.params.size() > 1;
    offered.num_joined = num_joined(name);
    offered.parameter = view(name);
    offered.experts = has_experts ? op.inputs[1] : kAbsent;
    offered.experts_dims = experts_dims.data();
    offered.num_experts_dims = static_cast<uint32_t>(experts_dims.size());
    OpExtension extension(program_, block, at, module_of(weight.name), added);
    plugin_.extend(offered, extension.table());
    return extension.is_empty() ? at + 1 : extension.finish();
  }

  void report_block(const BlockType& before, const BlockType& after) {
    std::map<std::string, std::string> added;  // by module: its parameters' names
    std::string trained;
    for (const ParameterSlot& slot : after.slots) {
      if (slot.added) {
        // "self_attn.q_proj" for "self_attn.q_proj.lora_A.weight": the longest module of a recorded parameter
        std::string module = module_of(slot.name);
        while (!module.empty() &&
               std::ranges::none_of(before.slots, [&](const ParameterSlot& s) { return module_of(s.name) == module; }))
          module = module_of(module);
        std::string& names = added[module];
        names += (names.empty() ? "" : ", ") + slot.name.substr(module.empty() ? 0 : module.size() + 1) + " " +
                 program_.dims_text(flat(slot));
      } else if (!slot.frozen) {
        trained += (trained.empty() ? "" : ", ") + slot.name;
      }
    }
    for (const auto& [module, names] : added) report_(after.name + "." + module, "adds " + names);
    if (!trained.empty()) report_(after.name, "trains " + trained);
    if (added.empty() && trained.empty()) report_(after.name, "left as it is, frozen");
  }

  static std::vector<DimId> flat(const ParameterSlot& slot) {
    std::vector<DimId> dims;
    for (const auto& axis : slot.axes) dims.insert(dims.end(), axis.begin(), axis.end());
    return dims;
  }

  const AdapterPlugin& plugin_;
  Program& program_;
  const std::vector<BlockType> recorded_;
  const FileNames files_;
  const RewritePass::Report& report_;
  std::map<std::string, std::vector<std::string>> tied_;  // by parameter
  std::map<std::string, bool> trained_;                   // by parameter
};

}  // namespace

void AdapterPass::rewrite(Program& program, const Report& report) const {
  Adaptation(plugin_, program, file_names_(program), report).run();
}

}  // namespace chassis
