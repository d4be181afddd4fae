// Each expert is stored as bitsandbytes stores its matrix alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "host/compile/quant_plugin.hpp"
#include "host/plugin/status.hpp"
#include "tests/support/ops_provider.hpp"

namespace chassis::test {
namespace {

using Bytes = std::vector<std::vector<std::byte>>;

struct Options {
  bool nested = false;
  int64_t block = 64;
  const char* type = "nf4";
  bool experts = true;
};

class Bnb4Experts : public testing::Test {
 protected:
  // Makes the plugin anew.
  const QuantPlugin& plugin(const Options& options) {
    plugin_.reset();
    provider_.emplace("bnb4", "bnb4",
                      Json{{"block_size", options.block},
                           {"double_quant", options.nested},
                           {"type", options.type},
                           {"experts", options.experts},
                           {"skip", Json::array()}},
                      "quant");
    plugin_.emplace(provider_->instance());
    plugin_->configure("");
    return *plugin_;
  }
  std::shared_ptr<const QuantizedStorage> storage(const std::vector<int64_t>& sizes) const {
    chassis_quant_parameter_t parameter{};
    parameter.struct_size = sizeof parameter;
    parameter.role = CHASSIS_ROLE_WEIGHT;
    parameter.name = str_of("model.layers.0.mlp.experts.0.up_proj.weight");
    parameter.module = str_of("model.layers.0.mlp.experts.0.up_proj");
    parameter.op = str_of(sizes.size() == 3 ? "grouped_linear" : "linear");
    parameter.sizes = sizes.data();
    parameter.num_dims = sizes.size();
    parameter.num_readers = 1;
    return plugin_->storage(parameter);
  }

  static std::vector<void*> addresses(Bytes& bytes) {
    std::vector<void*> out;
    for (auto& component : bytes) out.push_back(component.data());
    return out;
  }
  // The components of values that are encoded in parts of at most `step` elements.
  static Bytes stored(const QuantizedStorage& storage, const Shape& shape, std::vector<float> values, int64_t step) {
    const int64_t elements = numel(shape);
    Bytes made, staged;
    for (size_t i = 0; i < storage.components().size(); ++i) {
      const Component& c = storage.components()[i];
      const int64_t count = c.unit_elements == 0 ? numel(c.whole_shape) : storage.num_values(i, elements);
      made.emplace_back(static_cast<size_t>(count * size_bytes(c.dtype)));
      staged.emplace_back(static_cast<size_t>(count * 4));
    }
    for (int64_t begin = 0; begin < elements; begin += step) {
      const int64_t count = std::min(step, elements - begin);
      std::vector<void*> to;
      for (size_t i = 0; i < made.size(); ++i) {
        const Component& c = storage.components()[i];
        Bytes& bytes = storage.is_staged(i) ? staged : made;
        const int64_t size = storage.is_staged(i) ? 4 : size_bytes(c.dtype);
        to.push_back(c.unit_elements == 0 ? nullptr : bytes[i].data() + storage.value_offset(i, begin) * size);
      }
      storage.encode({shape, {begin, count}, to},
                     std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
    }
    std::vector<const void*> whole;
    for (size_t i = 0; i < made.size(); ++i) whole.push_back(storage.is_staged(i) ? staged[i].data() : nullptr);
    storage.finish({shape, {0, elements}, addresses(made)}, whole);
    return made;
  }
  static std::vector<float> random_values(int64_t count) {
    std::mt19937 random(3);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = std::normal_distribution<float>(0.0f, 0.05f)(random);
    return values;
  }

 private:
  std::optional<OpsProvider> provider_;
  std::optional<QuantPlugin> plugin_;
};

TEST_F(Bnb4Experts, HaveTheBytesOfTheirMatrices) {
  constexpr int64_t kExperts = 3, kOut = 40, kIn = 448;
  std::vector<float> values = random_values(kExperts * kOut * kIn);
  for (auto at = values.begin() + kOut * kIn; at < values.begin() + 2 * kOut * kIn; ++at) *at *= 100;  // other scales
  for (const Options& options : {Options{}, {.nested = true}, {.nested = true, .block = 32, .type = "fp4"}}) {
    plugin(options);
    const auto all = storage({kExperts, kOut, kIn}), one = storage({kOut, kIn});
    ASSERT_TRUE(all && one);
    EXPECT_EQ(all->num_slices(), kExperts);
    EXPECT_EQ(all->scheme(), one->scheme());
    ASSERT_EQ(all->components().size(), one->components().size());
    const Shape shape = {kExperts, kOut, kIn}, matrix = {kOut, kIn};
    Bytes ours = stored(*all, shape, values, shape[1] * shape[2] + options.block);
    EXPECT_TRUE(ours == stored(*all, shape, values, options.block)) << "cut into blocks";
    std::vector<float> decoded(values.size());
    all->decode({shape, {0, numel(shape)}, addresses(ours)}, decoded);
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto begin = values.begin() + e * kOut * kIn;
      Bytes theirs = stored(*one, matrix, {begin, begin + kOut * kIn}, kOut * kIn);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_EQ(all->slice_component(i), one->components()[i]);
        ASSERT_EQ(ours[i].size(), kExperts * theirs[i].size()) << "component " << i;
        EXPECT_EQ(
            std::memcmp(ours[i].data() + static_cast<size_t>(e) * theirs[i].size(), theirs[i].data(), theirs[i].size()),
            0)
            << "expert " << e << ", component " << i;
      }
      EXPECT_EQ(all->write_state({shape, {0, numel(shape)}, addresses(ours)}, e, Dtype::bf16),
                one->write_state({matrix, {0, numel(matrix)}, addresses(theirs)}, 0, Dtype::bf16));
      std::vector<float> alone(static_cast<size_t>(kOut * kIn));
      one->decode({matrix, {0, numel(matrix)}, addresses(theirs)}, alone);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), decoded.begin() + e * kOut * kIn)) << "expert " << e;
    }
  }
}

TEST_F(Bnb4Experts, ReadTheTextOfTheirOwn) {
  plugin({.nested = true});
  const auto all = storage({2, 32, 64});
  const Shape shape = {2, 32, 64};
  Bytes bytes = stored(*all, shape, random_values(numel(shape)), 64);
  const QuantizedPart whole{shape, {0, numel(shape)}, addresses(bytes)};
  const std::string second = all->write_state(whole, 1, Dtype::f32);
  const std::vector<std::byte> offsets = bytes.back();
  ASSERT_EQ(offsets.size(), 8u);
  std::ranges::fill(bytes.back(), std::byte{0});
  all->read_state(whole, 1, second);
  EXPECT_TRUE(std::equal(bytes.back().begin() + 4, bytes.back().end(), offsets.begin() + 4));
  EXPECT_TRUE(std::ranges::all_of(std::span(bytes.back()).first(4), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(Bnb4Experts, StayAsTheyAreIfTheyAreNoWholeBlocks) {
  plugin({});
  EXPECT_EQ(storage({3, 20, 36}), nullptr);
  EXPECT_NE(storage({3, 32, 36}), nullptr);
  EXPECT_NE(storage({20, 36}), nullptr) << "a linear may end within a block";
}

TEST_F(Bnb4Experts, StayAsTheyAreIfTheOptionSaysSo) {
  plugin({.experts = false});
  EXPECT_EQ(storage({3, 32, 64}), nullptr);
  EXPECT_NE(storage({32, 64}), nullptr);
}

}  // namespace
}  // namespace chassis::test
