// The text of whole graphs, compared with golden files, and what "auto" compared.
#include "host/compile/graph_text.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "host/base/file.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/recorder.hpp"
#include "tests/support/stub_passes.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::StubNode;
using test::StubProvider;

// CHASSIS_UPDATE_GOLDEN=1 writes the file.
void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = CHASSIS_TEST_SOURCE_DIR "/tests/golden/graph/" + name;
  if (std::getenv("CHASSIS_UPDATE_GOLDEN")) write_file_atomic(path, text);
  EXPECT_EQ(text, read_file(path)) << path;
}

std::string llama_graph(std::vector<const LayoutStrategy*> stack, bool freeze) {
  test::LoadedPlugins plugins;
  StubProvider attention("flash", {"attention"}), fused("fused", {"add+rms_norm", "linear+cross_entropy"}),
      plain("plain");
  attention.refuse = [](const StubNode&) { return std::string("head_dim 8 is not a multiple of 16"); };
  fused.plan = [](const StubNode&, chassis_infer_t& out) {
    out.keeps_outputs = 1;
    out.num_saved = 1;
    out.saved[0] = {CHASSIS_DTYPE_F32, 2, {2, 8}};
    out.workspace_forward_bytes = 4096;
  };
  plain.plan = [](const StubNode& node, chassis_infer_t& out) {
    out.keeps_inputs = node.pattern == "add" || node.pattern == "embedding" ? 0 : 3;
    if (node.pattern == "attention") out.flags = CHASSIS_KERNEL_COMPOSED;
    if (node.pattern == "gated_activation") out.flags = CHASSIS_KERNEL_HOST_OUTPUTS, out.overwrites_inputs = 1;
  };
  CompileOptions options{.passes = {.layout = std::move(stack)}, .resolve = {.batch = 2, .time = 8}};
  options.resolve.attention = {attention.provider()};
  options.resolve.kernels = {fused.provider(), plain.provider()};
  if (freeze)
    options.freeze = [](ParameterTable& parameters) {
      for (const auto& p : parameters.all()) p->trainable = p->name.find("layers.2") != std::string::npos;
    };
  const Recording llama =
      plugins.model("llama", R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 3,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 50})");
  const CompiledProgram compiled = compile(llama, std::move(options));
  return graph_text(compiled);
}

TEST(Graph, ShowsProvidersShapesRefusalsAndWhatIsKept) { expect_golden("llama.txt", llama_graph({}, false)); }

TEST(Graph, ShowsWhatAutoComparedAndWhy) {
  StubProvider slow("slow"), fast("fast", {"linear"}), twin("twin", {"add"}), fused("fused", {"linear+activation"});
  slow.cost = [](const StubNode& node) { return node.pattern == "add" ? 5e5 : 2.5e6; };
  fast.cost = twin.cost = [](const StubNode&) { return 5e5; };
  fused.cost = [](const StubNode&) { return 0.0; };
  ResolveOptions options;
  for (StubProvider* provider : {&fast, &fused, &slow, &twin}) options.kernels.push_back(provider->candidate());
  const CompiledProgram compiled = compile(test::SmallModel{}.program(), {.resolve = std::move(options)});
  const std::string text = graph_text(compiled);
  EXPECT_HAS(text, "      auto: slow 2.5 ms alone claims rms_norm\n");
  EXPECT_HAS(text, "      auto: fused (cost unknown) alone claims linear+activation\n");
  EXPECT_HAS(text, "      auto: fast 0.5 ms is the cheapest; slow 2.5 ms\n");
  EXPECT_HAS(text, "      auto: slow 0.5 ms is the first by name of those that cost the same; twin 0.5 ms\n");
}

TEST(Graph, ShowsTilesWithTheirSharedMemory) {
  static constexpr chassis_tile_t kTiles[] = {{128, 64, 98304, 163840}, {64, 32, 32768, 57344}};
  StubProvider tiled("tiled");
  tiled.plan = [](const StubNode& node, chassis_infer_t& out) {
    if (node.pattern == "activation") out.tiles = kTiles, out.num_tiles = 2, out.tile = 1;
  };
  ResolveOptions options;
  options.kernels = {tiled.provider()};
  const CompiledProgram compiled = compile(test::SmallModel{}.program(), {.resolve = std::move(options)});
  EXPECT_HAS(graph_text(compiled), " tile 64 × 32 with 32 KiB of shared memory in forward, 56 KiB in backward\n");
}

TEST(Graph, ShowsFrozenLayersAsASeparateBlock) { expect_golden("llama-frozen.txt", llama_graph({}, true)); }

TEST(Graph, ShowsCollectivesAndLocalShapes) {
  const test::TensorAxis halves(2, {"heads", "kv_heads", "ffn", "vocab"}, true);
  expect_golden("llama-tp.txt", llama_graph({&halves}, false));
}

}  // namespace
}  // namespace chassis
