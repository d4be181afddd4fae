// The values that the cache of generation holds, and the nodes that compute keys and values from them.
#include "host/compile/cache_pass.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "host/compile/liveness.hpp"
#include "tests/support/recorder.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::Recorder;
using test::StubProvider;
using Names = std::set<std::string>;

constexpr DimId kB = CHASSIS_DIM_BATCH, kT = CHASSIS_DIM_TIME;

// Four heads of 10 and 8 numbers, computed from a latent of 12 and a rotated part of 4 that all heads share.
struct Latents {
  Recorder& r;
  const DimId hidden = r.dim("hidden", 40), heads = r.dim("heads", 4), query = r.dim("query", 10);
  const DimId plain = r.dim("plain", 6), rotary = r.dim("rotary", 4), value = r.dim("value", 8);
  const DimId plain_and_value = r.dim("plain_and_value", 14), one = r.dim("one", 1);
  const DimId latent = r.dim("latent", 12), latent_and_rotary = r.dim("latent_and_rotary", 16), rank = r.dim("rank", 2);
  ValueId values = 0;  // of the last attention

  ValueId linear(const std::string& name, ValueId x, const std::vector<DimId>& out, const std::vector<DimId>& in) {
    return r.op("linear", name, {x}, {r.slot(name, {out, in})}, {}, out);
  }
  ValueId slice(const std::string& name, ValueId x, int64_t first, DimId dim) {
    return r.op("slice", name, {x}, {}, {{"first", first}}, {dim});
  }
  ValueId attention(ValueId x, ValueId keys, ValueId of_keys) {
    const OpAttrs attrs = {{"scale", 0.5}, {"causal", int64_t{1}}};
    return r.op("attention", "attention", {linear("q", x, {heads, query}, {hidden}), keys, of_keys}, {}, attrs);
  }
  ValueId latent_attention(ValueId x, bool has_branch) {
    const ValueId down = linear("down", x, {latent_and_rotary}, {hidden});
    const ValueId shared = r.op("reshape", "shared", {slice("last", down, 12, rotary)}, {}, {}, {kB, kT, one, rotary});
    const SlotId gain = r.slot("gain", {{latent}}, {CHASSIS_ROLE_NORM, CHASSIS_INIT_ONES});
    const ValueId normed = r.op("rms_norm", "latent", {slice("first", down, 0, latent)}, {gain}, {{"eps", 1e-6}});
    ValueId up = linear("up", normed, {heads, plain_and_value}, {latent});
    if (has_branch) {  // as an adapter adds it
      const ValueId a = linear("a", normed, {rank}, {latent});
      up = r.op("add", "sum", {up, linear("b", a, {heads, plain_and_value}, {rank})});
    }
    const OpAttrs angles = {{"inv_freq", std::vector<double>{1.0, 0.1}}};
    const ValueId rotated = r.op("rope", "rotated", {shared, r.field("positions")}, {}, angles);
    const ValueId key = r.op("concat", "key", {slice("plain", up, 0, plain), rotated}, {}, {}, {query});
    values = slice("value", up, 6, value);
    return linear("out", attention(x, key, values), {hidden}, {heads, value});
  }
};

// The block that `body` records, resolved for generation by a provider that computes nothing.
struct Generating {
  explicit Generating(const std::function<ValueId(Recorder&, Latents&, ValueId x)>& body) {
    const Program program = test::record([&](Recorder& r) {
      Latents dims{r};
      const uint32_t layer = r.block("b", [&] {
        const ValueId x = r.input("hidden", {kB, kT, dims.hidden});
        r.output("hidden", r.op("add", "residual", {x, body(r, dims, x)}));
      });
      const uint32_t first = r.block("e", [&] {
        const SlotId table = r.slot("e", {{r.dim("vocab", 11)}, {dims.hidden}}, {CHASSIS_ROLE_EMBEDDING});
        r.output("hidden", r.op("embedding", "e", {r.field("input_ids")}, {table}, {}, {dims.hidden}));
      });
      r.chain("first", "", {first});
      r.chain("layers", "layers.{i}", {layer, layer});
    });
    StubProvider all("all",
                     {"embedding", "linear", "rms_norm", "rope", "attention", "add", "reshape", "slice", "concat"});
    const ProgramLayout layout;
    ResolveOptions options;
    options.purpose = Purpose::kLogits;
    options.kernels = {all.provider()};
    options.batch = 2, options.time = 3;
    const std::vector<uint8_t> trainable(program.blocks[0].slots.size());
    ResolvedBlock resolved = resolve_block(program, layout, 0, trainable, false, options);
    find_liveness(program, layout, options, resolved);
    find_cached_values(resolved, options.compute);
    for (const Node& node : resolved.nodes) {
      if (node.is_left_to_cache) left.push_back(node.name.substr(2));
      for (const ValueId v : node.cached) cached.insert(resolved.block.values[v].name);
      for (const size_t n : node.computed_from_cache) again.push_back(resolved.nodes[n].name.substr(2));
    }
  }

  Names cached;
  std::vector<std::string> again, left;
};

TEST(CachePass, CachesTheFewestBytesThatGiveKeysAndValues) {
  const Generating block([](Recorder&, Latents& dims, ValueId x) { return dims.latent_attention(x, false); });
  EXPECT_EQ(block.cached, (Names{"latent", "rotated"}));
  EXPECT_EQ(block.again, (std::vector<std::string>{"up", "plain", "key", "value"}));
  EXPECT_EQ(block.left, block.again);
}

TEST(CachePass, TheBranchOfAnAdapterRunsAgainToo) {
  const Generating block([](Recorder&, Latents& dims, ValueId x) { return dims.latent_attention(x, true); });
  EXPECT_EQ(block.cached, (Names{"latent", "rotated"}));
  EXPECT_EQ(block.again, (std::vector<std::string>{"up", "a", "b", "sum", "plain", "key", "value"}));
  EXPECT_EQ(block.left, block.again);
}

TEST(CachePass, KeysAndValuesStayCachedIfTheOthersSaveLittle) {
  const Generating block([](Recorder&, Latents& dims, ValueId x) {
    const std::vector<DimId> out = {dims.heads, dims.query};
    const ValueId key = dims.linear("k", x, out, {dims.hidden}), value = dims.linear("v", x, out, {dims.hidden});
    return dims.linear("out", dims.attention(x, key, value), {dims.hidden}, out);
  });
  EXPECT_EQ(block.cached, Names()) << "x has half of their bytes";
  EXPECT_TRUE(block.again.empty() && block.left.empty());
}

TEST(CachePass, KeysAndValuesStayCachedIfALatentIsGoneBefore) {
  const Generating block([](Recorder& r, Latents& dims, ValueId x) {
    const ValueId y = dims.latent_attention(x, false);
    // The linear that computes the values runs in any case.
    return r.op("add", "more", {y, dims.linear("again", dims.values, {dims.hidden}, {dims.heads, dims.value})});
  });
  EXPECT_EQ(block.cached, Names());
  EXPECT_TRUE(block.again.empty() && block.left.empty());
}

}  // namespace
}  // namespace chassis
