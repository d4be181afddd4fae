// Attention over some queries and keys of a row on CUDA, by flash attention and by tiles, against the CPU; needs a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "host/service/device.hpp"
#include "tests/support/ops_provider.hpp"

namespace chassis::test {
namespace {

// Positions [query, query + 16) of a row, and keys [key, key + 16).
struct Pieces {
  int64_t query, key, num_positions;
};
constexpr int64_t kLength = 16, kHeads = 4, kKeyHeads = 2, kDim = 32;

NodeSpec partial_node(c10::ScalarType dtype, uint32_t device, int64_t window, int64_t num_positions) {
  NodeSpec node;
  node.device_type = device;
  node.inputs = {node.operand({2, kLength, kHeads, kDim}, dtype, true),
                 node.operand({2, kLength, kKeyHeads, kDim}, dtype, true),
                 node.operand({2, kLength, kKeyHeads, kDim}, dtype, true)};
  if (num_positions > 0) node.inputs.push_back(node.operand({2, num_positions}, at::kInt, false));
  node.outputs = {node.operand({2, kLength, kHeads, kDim}, dtype, true)};
  node.ops = {{"attention",
               node.inputs,
               {},
               node.outputs,
               {{"scale", 0.2},
                {"causal", int64_t{1}},
                {"window", window},
                {"document", int64_t{num_positions > 0}},
                {"key_part", int64_t{1}}}}};
  return node;
}

NodeResult run(OpsProvider& provider, const std::vector<at::Tensor>& inputs, const at::Tensor& gradient,
               const Pieces& pieces, uint32_t device, int64_t window) {
  NodeSpec node = partial_node(inputs[0].scalar_type(), device, window, inputs.size() > 3 ? pieces.num_positions : 0);
  EXPECT_EQ(provider.refusal(node), "");
  NodeCall how;
  how.query_offset = pieces.query, how.key_offset = pieces.key, how.num_positions = pieces.num_positions;
  return provider.run(node, inputs, {}, {gradient}, how);
}

TEST(SdpaOnCuda, ComputesPartsOfRowsAsTheCpuDoes) {
  if (const std::string why = load_device_type(*device_spec_named("cuda")); !why.empty()) GTEST_SKIP() << why;
  at::manual_seed(3);
  OpsProvider provider("sdpa");
  const auto random = [](int64_t heads) { return at::randn({2, kLength, heads, kDim}); };
  for (const auto& [dtype, document_length] :
       {std::pair{at::kFloat, 0}, {at::kBFloat16, 0}, {at::kBFloat16, 64}, {at::kBFloat16, 40}})
    for (const int64_t window : {0, 20})  // tiles take a window, and two documents
      for (const Pieces& pieces :
           {Pieces{0, 0, 64}, Pieces{32, 0, 64}, Pieces{48, 48, 64}, Pieces{48, 48, 59}, Pieces{48, 16, 48}}) {
        SCOPED_TRACE(testing::Message() << c10::toString(dtype) << ", documents of " << document_length << ", window "
                                        << window << ", queries from " << pieces.query << ", keys from " << pieces.key
                                        << " of " << pieces.num_positions);
        std::vector<at::Tensor> here = {random(kHeads), random(kKeyHeads), random(kKeyHeads)}, there;
        for (at::Tensor& x : here) x = x.to(dtype);
        if (document_length > 0)
          here.push_back(at::arange(pieces.num_positions).div(document_length, "floor").to(at::kInt).repeat({2, 1}));
        for (const at::Tensor& x : here) there.push_back(x.to(at::kCUDA));
        const at::Tensor gradient = random(kHeads).to(dtype);
        const NodeResult expected = run(provider, here, gradient, pieces, CHASSIS_DEVICE_CPU, window),
                         ours = run(provider, there, gradient.to(at::kCUDA), pieces, CHASSIS_DEVICE_CUDA, window);
        const double bound = dtype == at::kFloat ? 1e-4 : 4e-2;
        const auto difference = [](const at::Tensor& a, const at::Tensor& b) {
          return (a.cpu().to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
        };
        EXPECT_LE(difference(ours.outputs[0], expected.outputs[0]), bound);
        for (size_t i = 0; i < 3; ++i) EXPECT_LE(difference(ours.grad_inputs[i], expected.grad_inputs[i]), bound) << i;
      }
}

}  // namespace
}  // namespace chassis::test
