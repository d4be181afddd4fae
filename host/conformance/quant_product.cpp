// Records linears of one input, stores their weights with the plugin, and runs them twice: with the plugin's kernels,
// and decoded with the oracles'.
#include "host/conformance/quant_product.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "host/base/error.hpp"
#include "host/program/block_run.hpp"
#include "host/program/compile.hpp"
#include "host/program/quant.hpp"
#include "host/program/record.hpp"
#include "host/service/rng.hpp"

namespace chassis {
namespace {

struct Case {
  int64_t outputs, inputs;
  int64_t rows, tokens;
  bool has_bias = false, is_bias_trained = false;
  int num_linears = 1;  // of one input, whose gradient is their sum

  std::string text(Dtype compute) const {
    return fmt::format("{}linear [{}, {}]{} of {} rows in {}", num_linears > 1 ? "sum of two, " : "", outputs, inputs,
                       !has_bias         ? ""
                       : is_bias_trained ? " with a trained bias"
                                         : " with a bias",
                       rows * tokens, dtype_name(compute));
  }
};

// Rows that begin inside a block; as few rows as in generation, and more than the tiles of most kernels have.
constexpr Case kCases[] = {
    {21, 20, 2, 13},       {57, 36, 2, 13, true}, {57, 36, 2, 13, true, true},      {40, 448, 1, 1},
    {130, 96, 1, 3, true}, {96, 64, 1, 8},        {36, 57, 2, 13, false, false, 2}, {130, 270, 1, 140, true},
};

Program record(const Case& c) {
  Program program;
  program.dims = {{"B", 0}, {"T", 0}, {"in", c.inputs}, {"out", c.outputs}};
  const DimId in = 2, out = 3;
  BlockType& block = program.blocks.emplace_back();
  block.name = "products";
  const auto slot = [&](const std::string& name, std::vector<std::vector<DimId>> axes) {
    Slot slot;
    slot.name = name;
    slot.axes = std::move(axes);
    slot.init = CHASSIS_INIT_NORMAL;
    slot.init_std = 0.5;
    return block.add_slot(std::move(slot));
  };
  const ValueId x = block.inputs["x"] =
      block.add_value({"x", {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, in}, GraphValueType::kCompute, {}});
  const auto add_op = [&](const char* id, std::vector<ValueId> inputs, std::vector<SlotId> params,
                          const std::vector<DimId>& output_dims) {
    Op op{id, id, std::move(inputs), std::move(params), {}, {}};
    infer_outputs(program, block, op, output_dims);
    block.ops.push_back(op);
    return op.outputs[0];
  };
  ValueId sum = 0;
  for (int i = 0; i < c.num_linears; ++i) {
    const std::string name = "linear_" + std::to_string(i);
    std::vector<SlotId> params = {slot(name + ".weight", {{out}, {in}})};
    if (c.has_bias) params.push_back(slot(name + ".bias", {{out}}));
    const ValueId y = add_op("linear", {x}, params, {out});
    sum = i == 0 ? y : add_op("add", {sum, y}, {}, {});
  }
  block.outputs["y"] = sum;
  program.chains.push_back({"products", "", {0}});
  return program;
}

struct Named {
  std::string name;
  std::vector<float> values;
};

std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  Tensor::borrow(values.data(), tensor.sizes(), Dtype::f32).copy_from(tensor);
  return values;
}

void fill(const Tensor& tensor, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  random_normal(7, name, 0, values);
  tensor.copy_from(Tensor::borrow(values.data(), tensor.sizes(), Dtype::f32));
}

// The decoded values of a quantized parameter.
void decode(const Parameter& stored, const Tensor& to) {
  std::vector<float> values(static_cast<size_t>(to.num_elements()));
  QuantPart part{stored.descriptor.global_shape, {0, to.num_elements()}, {}};
  for (const StoredComponent& c : stored.components) part.components.push_back(c.shard.data());
  stored.storage->decode(part, values);
  to.copy_from(Tensor::borrow(values.data(), to.sizes(), Dtype::f32));
}

// Outputs and gradients of two micro-batches, then the outputs outside of training. `decoded`: the table whose weights
// `program` has; NULL if it stores them itself.
class Run {
 public:
  Run(const Case& c, const Program& program, const ResolveOptions& options, const ParameterTable* decoded)
      : case_(c), program_(program), options_(options), parameters_(program, layout_) {
    for (const auto& p : parameters_.all()) p->trainable = trains(p->name);
    parameters_.set_precision(options.compute);
    parameters_.allocate(options.device);
    parameters_.initialize(3);
    for (const auto& p : parameters_.all())
      if (const Parameter* other = decoded ? decoded->find(p->name) : nullptr; other && other->is_quantized())
        decode(*other, p->shard);
    parameters_.update_values();
    for (const auto& p : parameters_.all()) {
      if (p->is_quantized())
        for (StoredComponent& component : p->components) component.value = component.shard;
      if (p->trainable) p->gradient = Tensor::zeros(p->value.sizes(), Dtype::f32);
    }
  }

  const ParameterTable& parameters() const { return parameters_; }

  std::vector<Named> operator()() {
    std::vector<uint8_t> trainable;
    for (const Slot& slot : program_.blocks[0].slots) trainable.push_back(trains(slot.name));
    const ResolvedBlock block = compile_block(program_, layout_, 0, trainable, true, options_);
    ResolveOptions outside = options_;
    outside.purpose = Purpose::kLoss;
    const std::vector<uint8_t> none(trainable.size(), 0);
    const ResolvedBlock forward_only = compile_block(program_, layout_, 0, none, false, outside);
    RunContext context;
    context.program = &program_;
    context.layout = &layout_;
    context.options = &options_;
    context.parameters = &parameters_.of_unit(0);
    context.batch = case_.rows;
    context.time = case_.tokens;
    const int64_t sizes[] = {case_.rows, case_.tokens, case_.inputs};
    const std::map<std::string, Tensor> inputs = {{"x", Tensor::empty(sizes, options_.compute)}};
    fill(inputs.at("x"), "x");
    std::vector<Named> results;
    for (const auto& p : parameters_.all()) p->gradient_written = false;
    for (const char* when : {"", " in the second micro-batch"}) {
      Frame frame;
      std::map<std::string, Tensor> gradients;
      for (const auto& [name, y] : run_forward(block, context, inputs, {}, true, frame)) {
        results.push_back({name + when, values_of(y)});
        fill(gradients[name] = Tensor::empty(y.sizes(), options_.compute), name);
      }
      for (const auto& [name, dx] : run_backward(block, context, std::move(gradients), frame))
        results.push_back({"the gradient of " + name + when, values_of(dx)});
      for (const auto& p : parameters_.all())
        if (p->trainable) results.push_back({"the gradient of " + p->name + when, values_of(p->gradient)});
    }
    context.options = &outside;
    Frame frame;
    for (const auto& [name, y] : run_forward(forward_only, context, inputs, {}, false, frame))
      results.push_back({name + " outside of training", values_of(y)});
    return results;
  }

 private:
  bool trains(const std::string& name) const { return case_.is_bias_trained && name.ends_with(".bias"); }

  const Case& case_;
  const Program& program_;
  const ResolveOptions& options_;
  const ProgramLayout layout_;
  ParameterTable parameters_;
};

std::string difference(const std::vector<Named>& got, const std::vector<Named>& expected, double bound) {
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

}  // namespace

QuantProducts compare_quant_products(const QuantPlugin& plugin, std::span<const OpsProvider> oracles) {
  QuantProducts result;
  const QuantPass pass(plugin, [](const Program&) { return FileNames(); });
  for (const auto& [compute, bound] : {std::pair(Dtype::f32, 1e-4), std::pair(Dtype::bf16, 2e-2)})
    for (const Case& c : kCases) {
      const auto fail = [&](const std::string& what) { result.failures.push_back(c.text(compute) + ": " + what); };
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
      const Program stored = compile(plain, std::move(stores)).program;
      Run ours(c, stored, options, nullptr);
      std::vector<Named> got;
      try {
        got = ours();
      } catch (const Error& error) {
        if (!error.message().starts_with("no provider computes linear")) throw;
        if (result.left_out.empty()) result.left_out = c.text(compute) + ": " + error.message();
        continue;
      }
      ++result.num_compared;
      const std::vector<Named> again = ours();
      if (!std::ranges::equal(got, again, {}, &Named::values, &Named::values))
        fail("the same call gives other bits when it is repeated");
      Run theirs(c, plain, reference, &ours.parameters());
      if (const std::string what = difference(got, theirs(), bound); !what.empty()) fail(what);
    }
  return result;
}

}  // namespace chassis
