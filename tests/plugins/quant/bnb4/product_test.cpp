// Products of weights in 4 bits, compared with fp64 products of their values.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "host/compile/quant_plugin.hpp"
#include "tests/support/ops_provider.hpp"

namespace chassis::test {
namespace {

struct Case {
  int64_t rows, out, in;
  int64_t block = 64;
  bool nested = false, bias = false;
  const char* type = "nf4";
  int64_t experts = 0;  // rows have the weights of these

  std::vector<int64_t> weight_sizes() const {
    return experts > 0 ? std::vector<int64_t>{experts, out, in} : std::vector<int64_t>{out, in};
  }
};

std::ostream& operator<<(std::ostream& to, const Case& c) {
  if (c.experts > 0) to << c.experts << " experts, ";
  return to << c.rows << " rows, weight " << c.out << " x " << c.in << ", " << c.type << " in blocks of " << c.block
            << (c.nested ? ", nested" : "") << (c.bias ? ", bias" : "");
}

// A weight of normal values, its components, and the values that these stand for.
class Stored {
 public:
  explicit Stored(const Case& c)
      : provider_("bnb4", "bnb4",
                  {{"block_size", c.block},
                   {"double_quant", c.nested},
                   {"type", c.type},
                   {"experts", true},
                   {"skip", Json::array()}},
                  "quant"),
        plugin_(provider_.instance()) {
    const std::vector<int64_t> sizes = c.weight_sizes();
    plugin_.configure("");
    chassis_quant_parameter_t parameter{};
    parameter.struct_size = sizeof parameter;
    parameter.role = CHASSIS_ROLE_WEIGHT;
    parameter.name = {"a.weight", 8};
    parameter.module = {"a", 1};
    const std::string op = c.experts > 0 ? "grouped_linear" : "linear";
    parameter.op = {op.data(), op.size()};
    parameter.sizes = sizes.data();
    parameter.num_dims = sizes.size();
    parameter.num_readers = 1;
    const auto storage = plugin_.storage(parameter);
    const Shape shape{std::span(sizes)};
    const int64_t elements = numel(shape);
    at::Tensor values = at::randn(sizes, at::TensorOptions(at::kFloat)) * 0.05;
    std::vector<at::Tensor> staged;
    for (size_t i = 0; i < storage->components().size(); ++i) {
      const Component& component = storage->components()[i];
      const int64_t units = component.unit_elements == 0
                                ? numel(component.whole_shape)
                                : (elements + component.unit_elements - 1) / component.unit_elements;
      components.push_back(
          at::zeros({units}, at::TensorOptions(component.dtype == Dtype::u8 ? at::kByte : at::kFloat)));
      staged.push_back(storage->is_staged(i) ? at::zeros({units}, at::TensorOptions(at::kFloat)) : components.back());
    }
    std::vector<void*> encoded, whole;
    std::vector<const void*> staged_only;
    for (size_t i = 0; i < components.size(); ++i) {
      encoded.push_back(storage->components()[i].unit_elements == 0 ? nullptr : staged[i].data_ptr());
      whole.push_back(components[i].data_ptr());
      staged_only.push_back(storage->is_staged(i) ? staged[i].data_ptr() : nullptr);
    }
    storage->encode({shape, {0, elements}, encoded},
                    std::span(values.data_ptr<float>(), static_cast<size_t>(elements)));
    storage->finish({shape, {0, elements}, whole}, staged_only);
    storage->decode({shape, {0, elements}, whole}, std::span(values.data_ptr<float>(), static_cast<size_t>(elements)));
    this->values = values;
    scheme = storage->scheme();
  }

  OpsProvider& provider() { return provider_; }

  std::vector<at::Tensor> components;
  at::Tensor values;
  std::string scheme;

 private:
  OpsProvider provider_;
  QuantPlugin plugin_;
};

// Every element is within 2^-8 of its size if it was rounded to bf16, else 2^-23, plus 2^-21 of the sizes of the terms
// of its sum.
void expect_near(const at::Tensor& ours, const at::Tensor& exact, const at::Tensor& terms, bool rounds,
                 double slack = 1e-30) {
  const at::Tensor bound = exact.abs() * (rounds ? 0x1p-8 : 0x1p-23) + terms * 0x1p-21 + slack;
  const at::Tensor excess = ((ours.to(at::kDouble).view_as(exact) - exact).abs() / bound).max();
  EXPECT_LE(excess.item<double>(), 1.0);
}

class Bnb4Product : public testing::TestWithParam<at::ScalarType> {
 public:
  void check(const Case& c) {
    SCOPED_TRACE(testing::Message() << c);
    const bool is_bf16 = GetParam() == at::kBFloat16;
    at::manual_seed(7);
    Stored stored(c);
    NodeSpec node;
    const int x = node.operand({1, c.rows, c.in}, GetParam(), true);
    const int y = node.operand({1, c.rows, c.out}, GetParam(), true);
    const int weight = node.operand({c.out, c.in}, GetParam(), false);
    const int bias = c.bias ? node.operand({c.out}, GetParam(), false) : -1;
    node.ops = {{"linear", {x}, {weight, bias}, {y}, {{"storage", stored.scheme}}}};
    node.inputs = {x}, node.params = {weight, bias}, node.outputs = {y};
    ASSERT_EQ(stored.provider().refusal(node), "");

    const at::Tensor in = at::randn({1, c.rows, c.in}).to(GetParam()),
                     dy = at::randn({1, c.rows, c.out}).to(GetParam());
    const at::Tensor added = c.bias ? at::randn({c.out}).to(GetParam()) : at::Tensor();
    const bool few = c.rows <= 8 && c.in % 32 == 0;
    const at::Tensor exact = stored.values.to(at::kDouble),
                     rounded = is_bf16 ? stored.values.to(at::kBFloat16).to(at::kDouble) : exact;
    const at::Tensor left = in.to(at::kDouble).view({c.rows, c.in}), back = dy.to(at::kDouble).view({c.rows, c.out});
    for (const bool adds : {false, true}) {
      NodeCall how;
      how.components = stored.components;
      how.add_grad_inputs = adds;
      const NodeResult result = stored.provider().run(node, {in}, {at::Tensor(), added}, {dy}, how);
      const at::Tensor& read = few ? exact : rounded;
      at::Tensor sum = left.matmul(read.t());
      if (c.bias) sum = sum + added.to(at::kDouble);
      expect_near(result.outputs[0], sum, left.abs().matmul(read.abs().t()), is_bf16);
      // The harness subtracts what it lent from the rounded sum.
      expect_near(result.grad_inputs[0], back.matmul(rounded), back.abs().matmul(rounded.abs()), is_bf16,
                  adds ? (is_bf16 ? 0x1p-6 : 0x1p-21) : 1e-30);
    }
  }
};

// Compares expert by expert: expert 0 gets most rows, expert 1 none, expert 2 a few, and some tokens have no expert.
class Bnb4ExpertProduct : public Bnb4Product {
 public:
  void check(const Case& c) {
    SCOPED_TRACE(testing::Message() << c);
    const bool is_bf16 = GetParam() == at::kBFloat16;
    at::manual_seed(7);
    Stored stored(c);
    std::vector<int32_t> ids;
    for (int32_t row = 0; row < c.rows; ++row)
      ids.push_back(row % 7 == 5 ? -1 : row % 11 == 3 ? 2 : row % 3 == 1 ? static_cast<int32_t>(c.experts) - 1 : 0);
    const int64_t tokens = c.rows / 2;
    const at::Tensor experts = at::tensor(ids, at::kInt).view({1, tokens, 2});
    NodeSpec node;
    const int x = node.operand({1, tokens, 2, c.in}, GetParam(), true),
              which = node.operand({1, tokens, 2}, at::kInt, false);
    const int y = node.operand({1, tokens, 2, c.out}, GetParam(), true);
    const int weight = node.operand(c.weight_sizes(), GetParam(), false);
    const int bias = c.bias ? node.operand({c.experts, c.out}, GetParam(), true) : -1;
    node.ops = {{"grouped_linear", {x, which}, {weight, bias}, {y}, {{"storage", stored.scheme}}}};
    node.inputs = {x, which}, node.params = {weight, bias}, node.outputs = {y};
    ASSERT_EQ(stored.provider().refusal(node), "");

    const at::Tensor in = at::randn({1, tokens, 2, c.in}).to(GetParam()),
                     dy = at::randn({1, tokens, 2, c.out}).to(GetParam());
    const at::Tensor added = c.bias ? at::randn({c.experts, c.out}).to(GetParam()) : at::Tensor();
    const at::Tensor left = in.to(at::kDouble).view({c.rows, c.in}), back = dy.to(at::kDouble).view({c.rows, c.out});
    for (const bool adds : {false, true}) {
      NodeCall how;
      how.components = stored.components;
      how.add_grad_inputs = how.add_grad_params = adds;
      const NodeResult result = stored.provider().run(node, {in, experts}, {at::Tensor(), added}, {dy}, how);
      const at::Tensor ours = result.outputs[0].view({c.rows, c.out}),
                       gradient = result.grad_inputs[0].view({c.rows, c.in});
      int64_t begin = 0;
      for (int64_t e = 0; e < c.experts; ++e) {
        const int64_t count = std::ranges::count(ids, static_cast<int32_t>(e));
        if (count == 0) {
          if (c.bias) {
            EXPECT_LT(result.grad_params[1][e].abs().max().item<double>(), 1e-6);
          }
          continue;
        }
        const auto of = [&](const at::Tensor& all) { return all.narrow(0, begin, count); };
        const at::Tensor exact = stored.values[e].to(at::kDouble),
                         rounded = is_bf16 ? stored.values[e].to(at::kBFloat16).to(at::kDouble) : exact,
                         read = count <= 8 && c.in % 32 == 0 ? exact : rounded;
        at::Tensor sum = of(left).matmul(read.t());
        if (c.bias) sum = sum + added[e].to(at::kDouble);
        expect_near(of(ours), sum, of(left).abs().matmul(read.abs().t()), is_bf16);
        expect_near(of(gradient), of(back).matmul(rounded), of(back).abs().matmul(rounded.abs()), is_bf16,
                    adds ? (is_bf16 ? 0x1p-6 : 0x1p-21) : 1e-30);
        if (c.bias)
          expect_near(result.grad_params[1][e], of(back).sum(0), of(back).abs().sum(0), false, adds ? 0x1p-20 : 1e-30);
        begin += count;
      }
      EXPECT_EQ(ours.narrow(0, begin, c.rows - begin).abs().sum().item<double>(), 0.0);
      if (adds) continue;
      EXPECT_EQ(gradient.narrow(0, begin, c.rows - begin).abs().sum().item<double>(), 0.0);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(, Bnb4ExpertProduct, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "F32" : "BF16"; });

TEST_P(Bnb4ExpertProduct, IsThatOfEachExpertWithItsRows) {
  check({.rows = 60, .out = 96, .in = 128, .experts = 4});
  check({.rows = 60, .out = 40, .in = 448, .nested = true, .bias = true, .experts = 5});
  check({.rows = 200, .out = 64, .in = 57, .block = 32, .nested = true, .bias = true, .experts = 3});
  check({.rows = 2, .out = 33, .in = 128, .type = "fp4", .experts = 3});
}

INSTANTIATE_TEST_SUITE_P(, Bnb4Product, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "F32" : "BF16"; });

TEST_P(Bnb4Product, OfManyRows) {
  check({.rows = 64, .out = 96, .in = 128});
  check({.rows = 33, .out = 100, .in = 896, .nested = true, .bias = true});
  check({.rows = 40, .out = 896, .in = 96, .block = 32, .bias = true});
  check({.rows = 17, .out = 40, .in = 4096, .block = 4096, .type = "fp4"});
  check({.rows = 70, .out = 2100, .in = 64, .nested = true});
  check({.rows = 20, .out = 24, .in = 14336, .nested = true});
}

TEST_P(Bnb4Product, OfRowsThatAreNoWholeBlocks) {
  check({.rows = 9, .out = 57, .in = 36, .nested = true, .bias = true});
  check({.rows = 50, .out = 33, .in = 57});
  check({.rows = 3, .out = 5, .in = 7, .bias = true});
  check({.rows = 1, .out = 1, .in = 1});
  check({.rows = 12, .out = 31, .in = 2111, .block = 128, .type = "fp4"});
}

TEST_P(Bnb4Product, OfFewRows) {
  for (int64_t rows = 1; rows <= 8; ++rows) check({.rows = rows, .out = 33, .in = 896, .nested = rows % 2 == 0});
  check({.rows = 1, .out = 20, .in = 14336, .nested = true, .bias = true});
  check({.rows = 2, .out = 7, .in = 96, .block = 256, .bias = true});
  check({.rows = 5, .out = 9, .in = 32, .type = "fp4"});
  check({.rows = 1, .out = 3, .in = 16384, .block = 32});
}

}  // namespace
}  // namespace chassis::test
