// Each op becomes a program of its own, which runs with whole operands and with parts of them.
#include "host/conformance/own_ops.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/compile.hpp"
#include "host/conformance/sample_program.hpp"
#include "host/execute/block_run.hpp"
#include "host/execute/kernels.hpp"
#include "host/service/rng.hpp"

namespace chassis {
namespace {

// The elements of a tensor with its dims, row-major.
struct Array {
  std::vector<DimId> dims;
  std::vector<int64_t> sizes;
  std::vector<float> values;
  bool has(DimId dim) const { return std::ranges::find(dims, dim) != dims.end(); }
};

// A range of indices of one dim.
struct Part {
  DimId dim;
  int64_t begin, size;
};

// Calls body(index in the whole, index in the part) for every element of the part.
template <typename Body>
void for_each_in(const std::vector<DimId>& dims, const std::vector<int64_t>& sizes, const Part& part, Body&& body) {
  const auto at = static_cast<size_t>(std::ranges::find(dims, part.dim) - dims.begin());
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < sizes.size(); ++i) (i < at ? outer : inner) *= i == at ? 1 : sizes[i];
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t i = 0; i < part.size * inner; ++i)
      body(static_cast<size_t>((o * sizes[at] + part.begin) * inner + i),
           static_cast<size_t>(o * part.size * inner + i));
}

class OwnOpExamination {
 public:
  OwnOpExamination(const Program& program, const BlockType& block, const Op& op, std::span<const OpsProvider> providers)
      : where_("op " + op.id.text() + " '" + op.name + "' of block '" + block.name + "'"), providers_(providers) {
    single_.dims = program.dims;
    single_.chains.push_back({"own", "", {0}});
    BlockType& own = single_.blocks.emplace_back();
    own.name = "own";
    Op copy = op;
    for (size_t i = 0; i < op.inputs.size(); ++i)
      if (op.inputs[i] != kAbsent) copy.inputs[i] = input(block, op.inputs[i]);
    for (SlotId& slot : copy.params) {
      ParameterSlot read = block.slots[slot];
      read.tied_to.clear();
      slot = own.add_slot(std::move(read));
    }
    const GraphValue& result = block.values[op.outputs[0]];
    copy.outputs = {own.add_value({"y", result.dims, result.type, {}})};
    own.outputs[result.dims.empty() ? "loss" : "y"] = copy.outputs[0];
    own.ops.push_back(std::move(copy));
  }

  std::string run() {
    const Op& op = single_.blocks[0].ops[0];
    const std::map<std::string, Array> whole = results(std::nullopt);
    for (DimId dim = 0; dim < single_.dims.size(); ++dim) {
      const int64_t size = size_of(dim);
      if (size < 2 || !single_.blocks[0].has_operand_with(op, dim) || single_.blocks[0].needs_all_of(op, dim)) continue;
      std::vector<std::map<std::string, Array>> parts;
      const std::vector<Part> halves = {{dim, 0, size / 2}, {dim, size / 2, size - size / 2}};
      try {
        for (const Part& part : halves) parts.push_back(results(part));
      } catch (const UnclaimedOp&) {
        continue;
      }
      for (const auto& [name, expected] : whole)
        if (const std::string text = difference(name, expected, halves, parts); !text.empty())
          return where_ + " declares that it does not mix '" + single_.dims[dim].name + "', but " + text;
    }
    return "";
  }

 private:
  ValueId input(const BlockType& block, ValueId value) {
    BlockType& own = single_.blocks[0];
    if (const auto known = inputs_.find(value); known != inputs_.end()) return known->second;
    GraphValue copy = block.values[value];
    const auto field = std::ranges::find_if(block.fields, [&](const auto& named) { return named.second == value; });
    copy.name = field != block.fields.end() ? field->first : "x" + std::to_string(inputs_.size());
    const bool is_input = copy.type != GraphValueType::kInt32;
    const std::string name = copy.name;
    if (!is_input) single_.fields[name] = {copy.type, copy.dims};
    const ValueId id = own.add_value(std::move(copy));
    (is_input ? own.inputs : own.fields)[name] = id;
    return inputs_[value] = id;
  }

  int64_t size_of(DimId dim) const {
    return DimSizes::largest(single_, kSampleBatch, kSampleTime).size_of(single_, dim);
  }
  std::vector<int64_t> sizes_of(const std::vector<DimId>& dims) const {
    std::vector<int64_t> sizes;
    for (DimId dim : dims) sizes.push_back(size_of(dim));
    return sizes;
  }

  // A random operand, or `part` of it.
  Array operand(const std::string& name, const std::vector<DimId>& dims, const std::optional<Part>& part) const {
    Array whole{dims, sizes_of(dims), {}};
    int64_t count = 1;
    for (int64_t size : whole.sizes) count *= size;
    whole.values.resize(static_cast<size_t>(count));
    random_normal(9, name, 0, whole.values);
    if (!part || !whole.has(part->dim)) return whole;
    Array out{dims, whole.sizes, {}};
    const auto at = static_cast<size_t>(std::ranges::find(dims, part->dim) - dims.begin());
    out.values.resize(whole.values.size() / static_cast<size_t>(whole.sizes[at]) * static_cast<size_t>(part->size));
    out.sizes[at] = part->size;
    for_each_in(dims, whole.sizes, *part, [&](size_t from, size_t to) { out.values[to] = whole.values[from]; });
    return out;
  }
  static void fill(const Tensor& tensor, Array array) {
    tensor.copy_from(Tensor::borrow(array.values.data(), tensor.sizes(), Dtype::f32));
  }
  static std::vector<DimId> dims_of(const ParameterSlot& slot) {
    std::vector<DimId> dims;
    for (const auto& axis : slot.axes) dims.insert(dims.end(), axis.begin(), axis.end());
    return dims;
  }

  // The output and all gradients, by name.
  std::map<std::string, Array> results(const std::optional<Part>& part) const {
    Program program = single_;
    if (part && !single_.dims[part->dim].is_of_rows()) program.dims[part->dim].size = part->size;
    const BlockType& own = program.blocks[0];
    const auto sized = [&](DimId dim) { return part && part->dim == dim ? part->size : size_of(dim); };
    ResolveOptions options;
    options.batch = sized(CHASSIS_DIM_BATCH), options.time = sized(CHASSIS_DIM_TIME);
    options.kernels.assign(providers_.begin(), providers_.end());
    const ProgramLayout layout;
    ParameterTable parameters(program, layout);
    const ParameterStorage storage(parameters, Device{});
    const std::vector<uint8_t> trainable(own.slots.size(), 1);
    const ResolvedBlock block = compile_block(program, layout, 0, trainable, true, options);
    for (size_t s = 0; s < own.slots.size(); ++s)
      fill(parameters.at(0, static_cast<SlotId>(s)).stored(), operand(own.slots[s].name, dims_of(own.slots[s]), part));
    parameters.update_values();
    parameters.start_step();
    for (const auto& p : parameters.all()) p->gradient = Tensor::zeros(p->value.sizes(), Dtype::f32);
    std::map<std::string, Tensor> inputs;
    for (const auto& [name, value] : own.inputs) {
      const Array array = operand(name, own.values[value].dims, part);
      inputs[name] = Tensor::empty(array.sizes, Dtype::f32);
      fill(inputs[name], array);
    }
    const Kernels kernels(options.device);
    RunContext context;
    context.backend = &kernels;
    context.program = &program;
    context.layout = &layout;
    context.options = &options;
    context.parameters = &parameters.of_unit(0);
    context.sizes = options.planned(program);
    std::map<std::string, Array> out;
    const auto keep = [&](const std::string& name, const std::vector<DimId>& dims, const Tensor& tensor) {
      Array array{dims, tensor.sizes(), std::vector<float>(static_cast<size_t>(tensor.num_elements()))};
      if (dims.size() != array.sizes.size()) {  // a parameter, whose axes are products of dims
        array.sizes.clear();
        for (DimId dim : dims) array.sizes.push_back(sized(dim));
      }
      Tensor::borrow(array.values.data(), tensor.sizes(), Dtype::f32).copy_from(tensor);
      out[name] = std::move(array);
    };
    Frame frame;
    std::map<std::string, Tensor> gradients;
    for (auto& [name, tensor] : run_forward(block, context, inputs, fields_of(part), true, frame)) {
      const std::vector<DimId>& dims = own.values[own.outputs.at(name)].dims;
      keep("its output", dims, tensor);
      if (name == "loss" || own.values[own.outputs.at(name)].type == GraphValueType::kInt32) continue;
      gradients[name] = Tensor::empty(tensor.sizes(), tensor.dtype());
      fill(gradients[name], operand("gradient", dims, part));
    }
    for (auto& [name, tensor] : run_backward(block, context, std::move(gradients), frame))
      keep("its gradient of input " + name, own.values[own.inputs.at(name)].dims, tensor);
    for (size_t s = 0; s < own.slots.size(); ++s)
      keep("its gradient of parameter '" + own.slots[s].name + "'", dims_of(own.slots[s]),
           parameters.at(0, static_cast<SlotId>(s)).gradient);
    return out;
  }

  Fields fields_of(const std::optional<Part>& part) const {
    Fields fields = sample_fields(single_);
    if (!part) return fields;
    for (auto& [name, field] : fields) {
      const std::vector<DimId>& dims = single_.fields.at(name).dims;
      const auto at = std::ranges::find(dims, part->dim);
      if (at == dims.end()) continue;
      field = field.narrow(static_cast<int>(at - dims.begin()), part->begin, part->size).contiguous();
    }
    return fields;
  }

  static std::string difference(const std::string& name, const Array& whole, const std::vector<Part>& halves,
                                const std::vector<std::map<std::string, Array>>& parts) {
    std::vector<float> joined(whole.values.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto found = parts[i].find(name);
      if (found == parts[i].end()) return name + " is missing for a part of its operands";
      const std::vector<float>& values = found->second.values;
      if (whole.has(halves[i].dim))
        for_each_in(whole.dims, whole.sizes, halves[i], [&](size_t to, size_t from) { joined[to] = values[from]; });
      else
        for (size_t k = 0; k < joined.size(); ++k) joined[k] += values[k];
    }
    float largest = 0;
    for (float value : whole.values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < joined.size(); ++i)
      if (!(std::abs(joined[i] - whole.values[i]) <= 1e-4f * largest))
        return fmt::format("element {} of {} is {} for all of it, and {} in two parts", i, name, whole.values[i],
                           joined[i]);
    return "";
  }

  const std::string where_;
  const std::span<const OpsProvider> providers_;
  Program single_;  // has the op alone
  std::map<ValueId, ValueId> inputs_;
};

}  // namespace

bool has_own_ops(const Program& program) {
  return std::ranges::any_of(program.blocks,
                             [](const BlockType& block) { return std::ranges::any_of(block.ops, &Op::is_own); });
}

std::vector<std::string> own_op_failures(const Program& program, std::span<const OpsProvider> providers) {
  std::vector<std::string> failures;
  for (const BlockType& block : program.blocks)
    for (const Op& op : block.ops) {
      if (!op.is_own() || !op.mixed_dims) continue;
      if (std::string text = OwnOpExamination(program, block, op, providers).run(); !text.empty())
        failures.push_back(std::move(text));
    }
  return failures;
}

}  // namespace chassis
