// The cache alone, and logits with and without it.
#include "host/execute/kv_cache.hpp"

#include <gtest/gtest.h>

#include "tests/support/cpu_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/naive_attention.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::ids_tensor;
using test::LoadedPlugins;
using test::StubProvider;

const char* kTinyLlama = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 24, "vocab_size": 13,
  "tie_word_embeddings": true})";

const char* kTinyLatent = R"({"architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": null, "kv_lora_rank": 12, "qk_nope_head_dim": 6,
  "qk_rope_head_dim": 4, "v_head_dim": 8, "intermediate_size": 24, "first_k_dense_replace": 1, "n_routed_experts": 4,
  "num_experts_per_tok": 2, "moe_intermediate_size": 10, "n_shared_experts": 1, "vocab_size": 13})";

Tensor positions(int32_t value, int64_t length) {
  const int64_t sizes[] = {1, length, 1, 2};
  Tensor tensor = Tensor::empty(sizes, Dtype::f32);
  tensor.fill(value);
  return tensor;
}

TEST(KeyValueCache, AppendsNewPositions) {
  KeyValueCache cache(5);
  EXPECT_EQ(cache.append(0, 3, positions(1, 2)).sizes(), (std::vector<int64_t>{1, 2, 1, 2}));
  EXPECT_EQ(cache.append(0, 4, positions(10, 2)).sizes(), (std::vector<int64_t>{1, 2, 1, 2}));
  EXPECT_EQ(cache.append(1, 3, positions(100, 2)).sizes(), (std::vector<int64_t>{1, 2, 1, 2}));
  cache.advance(2);
  EXPECT_EQ(cache.length(), 2);
  const Tensor keys = cache.append(0, 3, positions(2, 1));
  EXPECT_EQ(test::values_of(keys), (std::vector<float>{1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(test::values_of(cache.append(0, 4, positions(20, 1))), (std::vector<float>{10, 10, 10, 10, 20, 20}));
  EXPECT_EQ(test::values_of(cache.append(1, 3, positions(200, 1))), (std::vector<float>{100, 100, 100, 100, 200, 200}));
}

TEST(KeyValueCache, RefusesMoreThanItHolds) {
  KeyValueCache cache(3);
  cache.append(0, 0, positions(1, 3));
  cache.advance(3);
  EXPECT_HAS(test::refusal([&] { cache.append(0, 0, positions(1, 1)); }),
             "the key-value cache holds 3 positions, 4 are needed");
}

TEST(KeyValueCache, GrowsAndForgetsTheLastPositions) {
  KeyValueCache cache(2);
  cache.append(0, 0, positions(1, 2));
  cache.advance(2);
  cache.reserve(4);
  EXPECT_EQ(cache.capacity(), 4);
  EXPECT_EQ(test::values_of(cache.append(0, 0, positions(2, 2))), (std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2}));
  cache.advance(2);
  cache.truncate(1);
  EXPECT_EQ(cache.length(), 1);
  EXPECT_EQ(test::values_of(cache.append(0, 0, positions(3, 1))), (std::vector<float>{1, 1, 3, 3}));
  cache.reserve(1);
  EXPECT_EQ(cache.capacity(), 4) << "it never shrinks";
}

Fields row(const std::vector<int32_t>& ids, size_t begin) {
  std::vector<int32_t> positions;
  for (size_t i = begin; i < ids.size(); ++i) positions.push_back(static_cast<int32_t>(i));
  return {{"input_ids", ids_tensor({ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end()}, 1)},
          {"positions", ids_tensor(positions, 1)}};
}

void expect_pieces_to_agree(Executor& executor, KeyValueCache& cache) {
  const std::vector<int32_t> ids = {1, 12, 7, 0, 3, 3, 9};
  size_t seen = 0;
  for (size_t length : {3, 4, 6, 7}) {
    const std::vector<int32_t> prefix(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(length));
    const Tensor whole = executor.logits(row(prefix, 0), {}, true);
    KeyValueCache* const caches[] = {&cache};
    const Tensor cached = executor.logits(row(prefix, seen), caches, true);
    EXPECT_EQ(whole.sizes(), (std::vector<int64_t>{1, 1, 13}));
    EXPECT_LT(test::largest_difference(whole, cached), 1e-6) << length;
    seen = length;
  }
  EXPECT_EQ(cache.length(), 7);
}

void expect_rows_to_agree(Executor& executor) {
  const std::vector<std::vector<int32_t>> rows = {{1, 12, 7, 0, 3, 3, 9}, {4, 2}, {11, 5, 6, 8}};
  std::vector<KeyValueCache> caches;
  std::vector<KeyValueCache*> pointers;
  std::vector<int32_t> last_ids, last_positions;
  for (const auto& ids : rows) caches.emplace_back(static_cast<int64_t>(ids.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    pointers.push_back(&caches[i]);
    const std::vector<int32_t> prefix(rows[i].begin(), rows[i].end() - 1);
    executor.logits(row(prefix, 0), {&pointers[i], 1}, true);
    last_ids.push_back(rows[i].back());
    last_positions.push_back(static_cast<int32_t>(prefix.size()));
  }
  const auto num_rows = static_cast<int64_t>(rows.size());
  const Tensor together = executor.logits(
      {{"input_ids", ids_tensor(last_ids, num_rows)}, {"positions", ids_tensor(last_positions, num_rows)}}, pointers,
      true);
  EXPECT_EQ(together.sizes(), (std::vector<int64_t>{num_rows, 1, 13}));
  for (size_t i = 0; i < rows.size(); ++i) {
    const Tensor alone = executor.logits(row(rows[i], 0), {}, true);
    EXPECT_LT(test::largest_difference(alone, together.narrow(0, static_cast<int64_t>(i), 1)), 1e-6) << i;
    EXPECT_EQ(caches[i].length(), static_cast<int64_t>(rows[i].size()));
  }
}

TEST(KeyValueCache, LogitsAgreeWithThoseOfTheWholeRow) {
  LoadedPlugins plugins;
  StubProvider attention("naive", {"attention"});
  attention.forward = test::naive_attention;
  CpuRun run(plugins.record_model("llama", kTinyLlama), {plugins.ops("reference")}, {attention.provider()}, 1, 8);
  KeyValueCache cache(7);
  expect_pieces_to_agree(*run.executor, cache);
  EXPECT_EQ(cache.bytes_per_position(), 2u * 2 * (4 + 4) * 4) << "two layers of two key-value heads";
}

TEST(KeyValueCache, RowsOfDifferentLengthsAreComputedTogether) {
  LoadedPlugins plugins;
  StubProvider attention("naive", {"attention"});
  attention.forward = test::naive_attention;
  CpuRun run(plugins.record_model("llama", kTinyLlama), {plugins.ops("reference")}, {attention.provider()}, 1, 8);
  expect_rows_to_agree(*run.executor);
}

TEST(KeyValueCache, HoldsLatentsInPlaceOfTheKeysAndValuesOfAllHeads) {
  LoadedPlugins plugins;
  CpuRun run(plugins.record_model("deepseek_v2", kTinyLatent), {plugins.ops("reference")}, {plugins.ops("naive")}, 1,
             8);
  KeyValueCache cache(7);
  expect_pieces_to_agree(*run.executor, cache);
  EXPECT_EQ(cache.bytes_per_position(), 2u * (12 + 4) * 4) << "two layers, kv_lora_rank and qk_rope_head_dim";
  expect_rows_to_agree(*run.executor);
  EXPECT_EQ(chassis::text(run.compiled.reports(Purpose::kLogits)).find("holds all keys and values"), std::string::npos);
}

TEST(KeyValueCache, HoldsTheKeysAndValuesOfAllHeadsIfAskedTo) {
  LoadedPlugins plugins;
  CpuRun run(plugins.record_model("deepseek_v2", kTinyLatent), {plugins.ops("reference")}, {plugins.ops("naive")}, 1,
             8);
  ResolveOptions options = run.compiled.options();
  options.narrows_cache = false;
  const CompiledProgram full = compile(run.compiled.program(), {.objective = std::nullopt, .resolve = options});
  ParameterStorage storage(full.parameters(), Device{});
  full.parameters().initialize(7);
  Executor executor(full);
  KeyValueCache cache(7);
  expect_pieces_to_agree(executor, cache);
  EXPECT_EQ(cache.bytes_per_position(), 2u * 4 * (6 + 4 + 8) * 4);
}

TEST(KeyValueCache, LogitsOfAllPositionsAgreeWithThoseOfTheLast) {
  LoadedPlugins plugins;
  StubProvider attention("naive", {"attention"});
  attention.forward = test::naive_attention;
  CpuRun run(plugins.record_model("llama", kTinyLlama), {plugins.ops("reference")}, {attention.provider()}, 1, 8);
  const std::vector<int32_t> ids = {1, 12, 7, 0, 3};
  const Tensor all = run.executor->logits(row(ids, 0), {}, false);
  EXPECT_EQ(all.sizes(), (std::vector<int64_t>{1, 5, 13}));
  EXPECT_EQ(test::values_of(all.narrow(1, 4, 1)), test::values_of(run.executor->logits(row(ids, 0), {}, true)));
}

}  // namespace
}  // namespace chassis
