// Places of experts' branches in PEFT's files, with numbers by hand.
#include "plugins/adapter/lora/experts.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "chassis/guard.hpp"

namespace lora {
namespace {

using chassis::AdapterPart;
using chassis::AdapterTensor;
using Sizes = std::vector<int64_t>;

struct Matrix {
  Sizes sizes;
  std::vector<float> values;  // row-major; NaN where nothing was put
};

// Copies the values of parameters [a, b, c] to the tensors of files.
std::map<std::string, Matrix> in_files(const std::map<std::string, Matrix>& parameters,
                                       const std::vector<AdapterPart>& parts) {
  std::map<std::string, Matrix> tensors;
  for (const AdapterPart& part : parts) {
    Matrix& tensor = tensors[part.tensor];
    if (tensor.sizes.empty()) {
      tensor.sizes = part.sizes;
      tensor.values.assign(static_cast<size_t>(part.sizes[0] * part.sizes[1]), NAN);
    }
    EXPECT_EQ(tensor.sizes, part.sizes) << part.tensor;
    const Matrix& from = parameters.at(part.parameter);
    for (int64_t a = part.begin[0]; a < part.end[0]; ++a)
      for (int64_t b = part.begin[1]; b < part.end[1]; ++b)
        for (int64_t c = part.begin[2]; c < part.end[2]; ++c) {
          const int64_t offset[] = {a - part.begin[0], b - part.begin[1], c - part.begin[2]};
          const int64_t row = part.at[0] + offset[part.dims[0]], column = part.at[1] + offset[part.dims[1]];
          float& to = tensor.values[static_cast<size_t>(row * part.sizes[1] + column)];
          EXPECT_TRUE(std::isnan(to)) << part.tensor << " " << row << " " << column << " is written twice";
          to = from.values[static_cast<size_t>((a * from.sizes[1] + b) * from.sizes[2] + c)];
        }
  }
  return tensors;
}

// Two experts, rank 2, 3 inputs; gate has 2 outputs, as has up.
std::vector<ExpertLinear> gate_and_up(bool is_fused) {
  const auto linear = [&](const std::string& name, const std::string& in_files) {
    return ExpertLinear{"model.layers.3.mlp.experts." + name,
                        "model.layers.3.block_sparse_moe.experts.0." + in_files,
                        2,
                        2,
                        3,
                        2,
                        1.0,
                        is_fused};
  };
  return {linear("gate_proj", "w1"), linear("up_proj", "w3")};
}
// Values tell where they are: 100 × expert + 10 × row + column.
Matrix numbered(const Sizes& sizes, float from) {
  Matrix m{sizes, {}};
  for (int64_t e = 0; e < sizes[0]; ++e)
    for (int64_t r = 0; r < sizes[1]; ++r)
      for (int64_t c = 0; c < sizes[2]; ++c) m.values.push_back(from + static_cast<float>(100 * e + 10 * r + c));
  return m;
}
const std::map<std::string, Matrix> kParameters = {
    {"model.layers.3.mlp.experts.gate_proj.lora_A.weight", numbered({2, 2, 3}, 1000)},
    {"model.layers.3.mlp.experts.up_proj.lora_A.weight", numbered({2, 2, 3}, 4000)},
    {"model.layers.3.mlp.experts.gate_proj.lora_B.weight", numbered({2, 2, 2}, 2000)},
    {"model.layers.3.mlp.experts.up_proj.lora_B.weight", numbered({2, 2, 2}, 3000)}};

TEST(ExpertFiles, HaveOneAForGateAndUpAndColumnsByRank) {
  const auto branches = fused_branches(gate_and_up(true));
  ASSERT_EQ(branches.size(), 1u);
  EXPECT_EQ(branches[0].parameter, "model.layers.3.mlp.experts.gate_up_proj");
  const auto files = in_files(kParameters, places(branches[0], Orientation::kPlain));
  ASSERT_EQ(files.size(), 2u);
  const Matrix &a = files.at("model.layers.3.mlp.experts.lora_A.weight"),
               &b = files.at("model.layers.3.mlp.experts.lora_B.weight");
  EXPECT_EQ(a.sizes, (Sizes{4, 3}));
  EXPECT_EQ(a.values, (std::vector<float>{1000, 1001, 1002, 1010, 1011, 1012, 1100, 1101, 1102, 1110, 1111, 1112}));
  EXPECT_EQ(b.sizes, (Sizes{4, 4}));
  EXPECT_EQ(b.values, (std::vector<float>{2000, 2100, 2001, 2101,  //
                                          2010, 2110, 2011, 2111,  //
                                          3000, 3100, 3001, 3101,  //
                                          3010, 3110, 3011, 3111}))
      << "columns: rank 0 of expert 0 and 1, then rank 1; rows: gate, then up";
}

TEST(ExpertFiles, OfLlama4HaveTheOutputsInA) {
  const auto files = in_files(kParameters, places(fused_branches(gate_and_up(true))[0], Orientation::kSwapped));
  const Matrix &a = files.at("model.layers.3.mlp.experts.lora_A.weight"),
               &b = files.at("model.layers.3.mlp.experts.lora_B.weight");
  EXPECT_EQ(a.sizes, (Sizes{4, 4}));
  EXPECT_EQ(a.values, (std::vector<float>{2000, 2010, 3000, 3010,  //
                                          2001, 2011, 3001, 3011,  //
                                          2100, 2110, 3100, 3110,  //
                                          2101, 2111, 3101, 3111}));
  EXPECT_EQ(b.sizes, (Sizes{3, 4}));
  EXPECT_EQ(b.values, (std::vector<float>{1000, 1100, 1010, 1110,  //
                                          1001, 1101, 1011, 1111,  //
                                          1002, 1102, 1012, 1112}));
}

TEST(ExpertFiles, HaveABranchForEachLinearOfEachExpertInTheOlderForm) {
  std::vector<AdapterPart> parts;
  for (const ExpertLinear& linear : gate_and_up(false))
    for (const AdapterPart& part : places(linear)) parts.push_back(part);
  const auto files = in_files(kParameters, parts);
  EXPECT_EQ(files.size(), 8u);
  const Matrix& a = files.at("model.layers.3.block_sparse_moe.experts.1.w3.lora_A.weight");
  EXPECT_EQ(a.sizes, (Sizes{2, 3}));
  EXPECT_EQ(a.values, (std::vector<float>{4100, 4101, 4102, 4110, 4111, 4112}));
  const Matrix& b = files.at("model.layers.3.block_sparse_moe.experts.0.w1.lora_B.weight");
  EXPECT_EQ(b.values, (std::vector<float>{2000, 2001, 2010, 2011}));
}

TEST(ExpertFiles, NestGateAndUpInDown) {
  std::vector<ExpertLinear> linears = gate_and_up(true);
  linears.push_back(
      {"model.layers.3.mlp.experts.down_proj", "model.layers.3.block_sparse_moe.experts.0.w2", 2, 3, 2, 2, 1.0, true});
  for (ExpertLinear linear : gate_and_up(true)) {
    linear.module.replace(linear.module.find(".3."), 3, ".4.");
    linears.push_back(linear);
  }
  const auto branches = fused_branches(linears);
  ASSERT_EQ(branches.size(), 3u);
  EXPECT_EQ(branches[0].tensors, "model.layers.3.mlp.experts.base_layer");
  EXPECT_EQ(branches[1].tensors, "model.layers.3.mlp.experts");
  EXPECT_EQ(branches[1].parameter, "model.layers.3.mlp.experts.down_proj");
  EXPECT_EQ(branches[2].tensors, "model.layers.4.mlp.experts") << "this layer has no branch for down";
}

TEST(ExpertNames, AreThoseOfTransformers) {
  EXPECT_EQ(fused_parameter("model.layers.0.mlp.experts.up_proj"), "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(fused_parameter("model.layers.0.mlp.experts.down_proj"), "model.layers.0.mlp.experts.down_proj");
  EXPECT_EQ(short_parameter("model.layers.0.mlp.experts.down_proj"), "mlp.experts.down_proj");
  EXPECT_EQ(short_parameter("experts.down_proj"), "experts.down_proj");
  EXPECT_EQ(of_expert("model.layers.0.mlp.experts.0.up_proj", 12), "model.layers.0.mlp.experts.12.up_proj");
  EXPECT_EQ(of_expert("model.layers.0.feed_forward.experts", 1), "") << "the 0 is that of the layer";
}

TEST(ExpertOrientation, IsToldByShapesOrVersion) {
  const FusedBranch branch = fused_branches(gate_and_up(true))[0];
  const std::string name = branch.tensors + ".lora_A.weight";
  const auto told = [&](const Sizes& sizes, Orientation of_model, const FusedBranch& of, const std::string& version) {
    return orientation_in(std::vector<AdapterTensor>{{name, sizes, {}}}, of, of_model, version);
  };
  EXPECT_EQ(told({4, 3}, Orientation::kSwapped, branch, ""), Orientation::kPlain);
  EXPECT_EQ(told({4, 4}, Orientation::kPlain, branch, ""), Orientation::kSwapped);
  EXPECT_EQ(orientation_in({}, branch, Orientation::kSwapped, ""), Orientation::kSwapped) << "files are written";
  FusedBranch square = branch;
  for (ExpertLinear& linear : square.linears) linear.in = 4;
  EXPECT_EQ(told({4, 4}, Orientation::kSwapped, square, "0.19.1"), Orientation::kSwapped);
  EXPECT_EQ(told({4, 4}, Orientation::kPlain, square, "0.21.2.dev0@abc"), Orientation::kPlain);
  for (const char* version : {"", "0.18.0", "0.19.0", "main"})
    EXPECT_THROW(told({4, 4}, Orientation::kPlain, square, version), chassis::Failure) << version;
  EXPECT_EQ(peft_orientation("{\"model_type\": \"llama4_text\"}"), Orientation::kSwapped);
  EXPECT_EQ(peft_orientation("{\"model_type\": \"mixtral\"}"), Orientation::kPlain);
  EXPECT_EQ(peft_orientation("[]"), Orientation::kPlain);
}

}  // namespace
}  // namespace lora
