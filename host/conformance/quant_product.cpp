// Records linears of one input, stores their weights with the plugin, and runs them twice: with the plugin's kernels,
// and decoded with the oracles'. Then the same with half of the rows, and half of the columns.
#include "host/conformance/quant_product.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "host/base/error.hpp"
#include "host/compile/compile.hpp"
#include "host/compile/quant_pass.hpp"
#include "host/conformance/sample_program.hpp"
#include "host/execute/block_run.hpp"
#include "host/execute/kernels.hpp"
#include "host/graph/op_table.hpp"
#include "host/plugin/status.hpp"
#include "host/service/rng.hpp"

namespace chassis {
namespace {

struct Case {
  int64_t outputs, inputs;
  int64_t rows, tokens;
  bool has_bias = false, is_bias_trained = false;
  int num_linears = 1;       // linears of one input, whose gradient is the sum of theirs
  int64_t groups = 0;        // the size of a dim between tokens and inputs; 0: there is none
  bool sums_groups = false;  // the dim is also one of the weight, as heads are in attention's output projection
  int64_t experts = 0;       // each row has its experts' weights; 0: there are none
  int64_t columns() const { return inputs * (sums_groups ? groups : 1); }

  std::string text(Dtype compute) const {
    return fmt::format("{}{}linear [{}, {}]{} of {} rows{} in {}", num_linears > 1 ? "sum of two, " : "",
                       experts > 0 ? fmt::format("grouped_linear of {} experts, each a ", experts) : "", outputs,
                       columns(),
                       !has_bias         ? ""
                       : is_bias_trained ? " with a trained bias"
                                         : " with a bias",
                       rows * tokens * (sums_groups ? 1 : std::max<int64_t>(groups, 1)), groups > 0 ? " of 4 dims" : "",
                       dtype_name(compute));
  }
};

// Weight rows that begin inside a block; as few tokens as in generation, and more than the tiles of most kernels have.
constexpr Case kCases[] = {
    {21, 20, 2, 13},
    {57, 36, 2, 13, true},
    {57, 36, 2, 13, true, true},
    {40, 448, 1, 1},
    {130, 96, 1, 3, true},
    {96, 64, 1, 8},
    {36, 57, 2, 13, false, false, 2},
    {130, 270, 1, 140, true},
    {64, 1024, 2, 13},
    {64, 1024, 1, 1},
    {57, 36, 2, 5, true, false, 1, 3},
    {57, 12, 2, 13, false, false, 1, 3, true},
    {.outputs = 64, .inputs = 192, .rows = 2, .tokens = 13, .experts = 5},
    {.outputs = 64, .inputs = 192, .rows = 1, .tokens = 60, .has_bias = true, .is_bias_trained = true, .experts = 5},
    {.outputs = 32, .inputs = 128, .rows = 2, .tokens = 13, .num_linears = 2, .experts = 3},
};

constexpr DimId kIn = 2, kOut = 3, kGroups = 4, kExperts = 4, kChosen = 5;
constexpr int64_t kNumChosen = 2;

// The expert of a pair of a token and one of its places. Expert 1 gets no row, and some tokens have no expert.
int32_t expert_of(int64_t pair, int64_t num_experts) {
  const int64_t token = pair / kNumChosen;
  if (token % 7 == 5) return -1;
  return static_cast<int32_t>(pair % kNumChosen == 0 ? 0 : 2 + token % (num_experts - 2));
}

bool stores_experts(const QuantPlugin& plugin, const Case& c) {
  const int64_t sizes[] = {c.experts, c.outputs, c.inputs};
  chassis_quant_parameter_t parameter{};
  parameter.struct_size = sizeof parameter;
  parameter.role = CHASSIS_ROLE_WEIGHT;
  parameter.name = str_of("experts.weight");
  parameter.module = str_of("experts");
  parameter.op = str_of("grouped_linear");
  parameter.sizes = sizes;
  parameter.num_dims = 3;
  parameter.num_readers = 1;
  return plugin.storage(parameter) != nullptr;
}

// The half of every weight that one of two ranks has.
struct Half {
  DimId dim;
  int64_t coordinate;
};

std::vector<Half> halves_of(const Case& c, const QuantizedStorage& storage) {
  std::vector<Half> out;
  if (!storage.is_divisible() || c.sums_groups) return out;
  const auto add = [&](DimId dim, int64_t size, int64_t stride) {
    const bool is_legal = size % 2 == 0 && size / 2 * stride % storage.block_elements() == 0;
    if (is_legal) out.insert(out.end(), {{dim, 0}, {dim, 1}});
  };
  add(kOut, c.outputs, c.inputs);
  if (c.inputs % storage.block_elements() == 0) add(kIn, c.inputs, 1);
  return out;
}

Program record(const Case& c) {
  Program program;
  program.dims = predeclared_dims();
  program.dims.insert(program.dims.end(), {{"in", c.inputs}, {"out", c.outputs}});
  if (c.groups > 0) program.dims.push_back({"groups", c.groups});
  if (c.experts > 0) program.dims.insert(program.dims.end(), {{"num_experts", c.experts}, {"chosen", kNumChosen}});
  BlockType& block = program.blocks.emplace_back();
  block.name = "products";
  const auto slot = [&](const std::string& name, std::vector<std::vector<DimId>> axes) {
    ParameterSlot slot;
    slot.name = name;
    slot.axes = std::move(axes);
    slot.init = CHASSIS_INIT_NORMAL;
    slot.init_std = 0.5;
    return block.add_slot(std::move(slot));
  };
  std::vector<DimId> contracted = {kIn}, dims = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME};
  if (c.sums_groups) contracted = {kGroups, kIn};
  if (c.groups > 0) dims.push_back(kGroups);
  if (c.experts > 0) dims.push_back(kChosen);
  const std::vector<DimId> pairs = dims;
  dims.push_back(kIn);
  const ValueId x = block.inputs["x"] = block.add_value({"x", dims, GraphValueType::kCompute, {}});
  const auto add_op = [&](const char* id, std::vector<ValueId> inputs, std::vector<SlotId> params,
                          const std::vector<DimId>& output_dims) {
    Op op{OpId(id), id, std::move(inputs), std::move(params), {}, {}};
    infer_outputs(program, block, op, output_dims);
    block.ops.push_back(op);
    return op.outputs[0];
  };
  std::vector<ValueId> inputs = {x};
  if (c.experts > 0)
    inputs.push_back(block.fields["experts"] = block.add_value({"experts", pairs, GraphValueType::kInt32, {}}));
  const auto of_experts = [&](std::vector<std::vector<DimId>> axes) {
    if (c.experts > 0) axes.insert(axes.begin(), {kExperts});
    return axes;
  };
  ValueId sum = 0;
  for (int i = 0; i < c.num_linears; ++i) {
    const std::string name = "linear_" + std::to_string(i);
    std::vector<SlotId> params = {slot(name + ".weight", of_experts({{kOut}, contracted}))};
    if (c.has_bias) params.push_back(slot(name + ".bias", of_experts({{kOut}})));
    const ValueId y = add_op(c.experts > 0 ? "grouped_linear" : "linear", inputs, params, {kOut});
    sum = i == 0 ? y : add_op("add", {sum, y}, {}, {});
  }
  block.outputs["y"] = sum;
  program.chains.push_back({"products", "", {0}});
  return program;
}

struct NamedValues {
  std::string name;
  std::vector<float> values;
};

void fill(const Tensor& tensor, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  random_normal(7, name, 0, values);
  tensor.copy_from(Tensor::borrow(values.data(), tensor.sizes(), Dtype::f32));
}

// Cuts every slot and value that has the dim along it.
Program divided(Program program, DimId dim) {
  BlockType& block = program.blocks[0];
  const auto place = [&](auto& of, const std::vector<DimId>& dims) {
    of.sharding = {Sharding()};
    if (std::ranges::find(dims, dim) != dims.end()) of.sharding[0] = {Sharding::Kind::kShard, dim};
  };
  for (GraphValue& value : block.values) place(value, value.dims);
  for (ParameterSlot& slot : block.slots) {
    std::vector<DimId> dims;
    for (const auto& axis : slot.axes) dims.insert(dims.end(), axis.begin(), axis.end());
    place(slot, dims);
  }
  return program;
}

ProgramLayout layout_of(const Half& half) { return {{{"tp", 2, half.coordinate}}}; }

// Computes the outputs and gradients of two micro-batches, then the outputs outside of training. `decoded`: the table
// whose decoded weights the program takes; NULL if the program stores them itself.
class Run {
 public:
  Run(const Case& c, const Program& program, const ResolveOptions& options, const ParameterTable* decoded,
      ProgramLayout layout = {})
      : case_(c),
        program_(program),
        options_(options),
        layout_(std::move(layout)),
        parameters_(program, layout_, {options.compute, [this](ParameterTable& parameters) {
                                         for (const auto& p : parameters.all()) p->trainable = trains(p->name);
                                       }}) {
    if (!layout_.axes.empty()) parameters_.place(parameters_.mesh(), static_cast<int>(layout_.axes[0].coordinate));
    storage_.emplace(parameters_, options.device);
    parameters_.initialize(3);
    for (const auto& p : parameters_.all()) {
      const Parameter* const other = decoded == nullptr ? nullptr : decoded->find(p->name);
      if (other == nullptr) continue;
      if (!other->is_quantized()) {
        p->shard.copy_from(other->shard);
        continue;
      }
      std::vector<float> values(static_cast<size_t>(p->shard.num_elements()));
      decoded->quantized().decode(*other, 0, values);
      p->shard.copy_from(Tensor::borrow(values.data(), p->shard.sizes(), Dtype::f32));
    }
    parameters_.update_values();
    for (const auto& p : parameters_.all()) {
      if (p->is_quantized())
        for (StoredComponent& component : p->components) component.value = component.shard;
      if (p->trainable) p->gradient = Tensor::zeros(p->value.sizes(), Dtype::f32);
    }
  }

  const ParameterTable& parameters() const { return parameters_; }

  std::vector<NamedValues> operator()() {
    std::vector<uint8_t> trainable;
    for (const ParameterSlot& slot : program_.blocks[0].slots) trainable.push_back(trains(slot.name));
    const ResolvedBlock block = compile_block(program_, layout_, 0, trainable, true, options_);
    ResolveOptions outside = options_;
    outside.purpose = Purpose::kLoss;
    const std::vector<uint8_t> none(trainable.size(), 0);
    const ResolvedBlock forward_only = compile_block(program_, layout_, 0, none, false, outside);
    const Kernels kernels(options_.device);
    RunContext context;
    context.backend = &kernels;
    context.program = &program_;
    context.layout = &layout_;
    context.options = &options_;
    context.parameters = &parameters_.of_unit(0);
    context.sizes = options_.planned(program_);
    std::vector<int64_t> sizes = {case_.rows, case_.tokens};
    if (case_.groups > 0) sizes.push_back(case_.groups);
    Fields fields;
    if (case_.experts > 0) {
      sizes.push_back(kNumChosen);
      const Tensor& which = fields["experts"] = Tensor::empty(sizes, Dtype::i32);
      for (int64_t i = 0; i < which.num_elements(); ++i) which.data_as<int32_t>()[i] = expert_of(i, case_.experts);
    }
    sizes.push_back(case_.inputs);
    const std::map<std::string, Tensor> inputs = {{"x", Tensor::empty(sizes, options_.compute)}};
    fill(inputs.at("x"), "x");
    std::vector<NamedValues> results;
    for (const auto& p : parameters_.all()) p->gradient_written = false;
    for (const char* when : {"", " in the second micro-batch"}) {
      Frame frame;
      std::map<std::string, Tensor> gradients;
      for (const auto& [name, y] : run_forward(block, context, inputs, fields, true, frame)) {
        results.push_back({name + when, float_values(y)});
        fill(gradients[name] = Tensor::empty(y.sizes(), options_.compute), name);
      }
      for (const auto& [name, dx] : run_backward(block, context, std::move(gradients), frame))
        results.push_back({"the gradient of " + name + when, float_values(dx)});
      for (const auto& p : parameters_.all())
        if (p->trainable) results.push_back({"the gradient of " + p->name + when, float_values(p->gradient)});
    }
    context.options = &outside;
    Frame frame;
    for (const auto& [name, y] : run_forward(forward_only, context, inputs, fields, false, frame))
      results.push_back({name + " outside of training", float_values(y)});
    return results;
  }

 private:
  bool trains(const std::string& name) const { return case_.is_bias_trained && name.ends_with(".bias"); }

  const Case& case_;
  const Program& program_;
  const ResolveOptions& options_;
  const ProgramLayout layout_;
  ParameterTable parameters_;
  std::optional<ParameterStorage> storage_;
};

std::string difference(const std::vector<NamedValues>& got, const std::vector<NamedValues>& expected, double bound) {
  if (got.size() != expected.size()) return fmt::format("it has {} results, expected {}", got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const std::vector<float>&a = got[i].values, &b = expected[i].values;
    if (a.size() != b.size()) return fmt::format("{} has {} elements, expected {}", got[i].name, a.size(), b.size());
    double largest = 0.0;
    for (const float value : b) largest = std::max(largest, std::abs(static_cast<double>(value)));
    for (size_t k = 0; k < a.size(); ++k)
      if (!(std::abs(static_cast<double>(a[k]) - static_cast<double>(b[k])) <= bound * largest))
        return fmt::format("{}[{}] is {}, the reference has {} with the decoded weight", got[i].name, k, a[k], b[k]);
  }
  return "";
}

// The first difference between products with half of each stored weight and those with that half decoded, or "".
std::string difference_of_half(const Case& whole, const Half& half, const Program& stored,
                               const ResolveOptions& options, const ResolveOptions& reference, double bound) {
  Case c = whole;
  (half.dim == kIn ? c.inputs : c.outputs) /= 2;
  const Program stored_half = divided(stored, half.dim), plain = record(c);
  Run ours(c, stored_half, options, nullptr, layout_of(half));
  const std::vector<NamedValues> got = ours();
  Run theirs(c, plain, reference, &ours.parameters());
  return difference(got, theirs(), bound);
}

}  // namespace

QuantProducts compare_quant_products(const QuantPlugin& plugin, std::span<const OpsProvider> oracles) {
  QuantProducts result;
  const QuantPass pass(plugin, [](const Program&) { return FileNames(); });
  for (const auto& [compute, bound] : {std::pair(Dtype::f32, 1e-4), std::pair(Dtype::bf16, 2e-2)})
    for (const Case& c : kCases) {
      if (c.experts > 0 && !stores_experts(plugin, c)) continue;
      const std::string text = c.text(compute);
      const auto fail = [&](const std::string& what) { result.failures.push_back(text + ": " + what); };
      ResolveOptions reference;
      reference.compute = compute;
      reference.batch = c.rows;
      reference.time = c.tokens;
      reference.kernels.assign(oracles.begin(), oracles.end());
      ResolveOptions options = reference;
      options.kernels.insert(options.kernels.begin(), ops_provider(plugin.instance()));
      const Program plain = record(c);
      CompileOptions stores;
      stores.passes.quant = {&pass};
      stores.resolve = options;
      const Program stored = compile(plain, std::move(stores)).program();
      Run ours(c, stored, options, nullptr);
      std::vector<NamedValues> got;
      try {
        got = ours();
      } catch (const UnclaimedOp& error) {
        if (!error.op.spec().is_linear() && error.op.text() != "grouped_linear") throw;
        if (result.left_out.empty()) result.left_out = text + ": " + error.message();
        continue;
      }
      ++result.num_compared;
      const std::vector<NamedValues> again = ours();
      if (!std::ranges::equal(got, again, {}, &NamedValues::values, &NamedValues::values))
        fail("the same call gives other bits when it is repeated");
      Run theirs(c, plain, reference, &ours.parameters());
      if (const std::string what = difference(got, theirs(), bound); !what.empty()) fail(what);
      for (const Half& half : halves_of(c, *ours.parameters().all()[0]->storage))
        if (const std::string what = difference_of_half(c, half, stored, options, reference, bound); !what.empty())
          fail(fmt::format("with {} half of the {}, {}", half.coordinate == 0 ? "the first" : "the second",
                           half.dim == kIn ? "columns" : "rows", what));
    }
  return result;
}

}  // namespace chassis
