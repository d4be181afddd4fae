// The program and the disk mapping of the llama plugin, through its tables.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/fake_host.hpp"
#include "tests/support/recording.hpp"

namespace {

class Llama : public testing::Test {
 protected:
  std::string configure(const std::string& extra = "") {
    const std::string json = R"({"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20)" +
                             extra + "}";
    return host_.message(model().configure(instance_.self(), fake::str(json)));
  }
  const chassis_model_t& model() { return instance_.interface<chassis_model_t>(CHASSIS_MODEL_ID); }

  // The declarations of its disk mapping, one line each.
  std::vector<std::string> mapping() {
    using Lines = std::vector<std::string>;
    static constexpr auto kLines = [](const chassis_disk_sink_t* s) -> Lines& { return *static_cast<Lines*>(s->impl); };
    Lines out;
    const chassis_disk_sink_t sink = {
        sizeof sink,
        0,
        &out,
        [](const chassis_disk_sink_t* s, const chassis_disk_rule_t* rule) -> chassis_status_t* {
          kLines(s).push_back("tensor " + fake::text_of(rule->name));
          return nullptr;
        },
        [](const chassis_disk_sink_t* s, const chassis_literal_t* literal) -> chassis_status_t* {
          kLines(s).push_back("literal " + fake::text_of(literal->name));
          return nullptr;
        },
        [](const chassis_disk_sink_t* s, chassis_str_t pattern) -> chassis_status_t* {
          kLines(s).push_back("skip " + fake::text_of(pattern));
          return nullptr;
        },
        [](const chassis_disk_sink_t* s, chassis_str_t pattern, chassis_str_t name) -> chassis_status_t* {
          kLines(s).push_back(fake::text_of(pattern) + " is " + fake::text_of(name));
          return nullptr;
        }};
    host_.check(model().disk_mapping(instance_.self(), &sink));
    return out;
  }

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/llama.so"};
  fake::Instance instance_{host_, plugin_, "model", "llama"};
};

TEST_F(Llama, RecordsABlockOfEachType) {
  ASSERT_EQ(configure(), "ok");
  fake::Recording recording;
  host_.check(model().record(instance_.self(), recording.builder()));
  const std::vector<std::string> expected = {
      "block embed",
      "  %1 = embedding(input_ids; embed_tokens.weight[vocab][hidden]) -> [hidden]",
      "  output hidden = %1",
      "chain embed 'model' embed x 1",
      "block layer",
      "  %1 = rms_norm(hidden[B, T, hidden]; input_layernorm.weight[hidden])",
      "  %3 = linear(%1; self_attn.q_proj.weight[heads*head_dim][hidden]) -> [heads, head_dim]",
      "  %4 = rope(%3, positions)",
      "  %5 = linear(%1; self_attn.k_proj.weight[kv_heads*head_dim][hidden]) -> [kv_heads, head_dim]",
      "  %6 = rope(%5, positions)",
      "  %7 = linear(%1; self_attn.v_proj.weight[kv_heads*head_dim][hidden]) -> [kv_heads, head_dim]",
      "  %9 = attention(%4, %6, %7, document_ids) causal=1 document=1",
      "  %10 = linear(%9; self_attn.o_proj.weight[hidden][heads*head_dim]) -> [hidden]",
      "  %11 = add(hidden[B, T, hidden], %10)",
      "  %12 = rms_norm(%11; post_attention_layernorm.weight[hidden])",
      "  %13 = linear(%12; mlp.gate_proj.weight[ffn][hidden]) -> [ffn]",
      "  %14 = linear(%12; mlp.up_proj.weight[ffn][hidden]) -> [ffn]",
      "  %15 = gated_activation(%13, %14) silu",
      "  %16 = linear(%15; mlp.down_proj.weight[hidden][ffn]) -> [hidden]",
      "  %17 = add(%11, %16)",
      "  output hidden = %17",
      "chain layers 'model.layers.{i}' layer x 3",
      "block head",
      "  %1 = rms_norm(hidden[B, T, hidden]; model.norm.weight[hidden])",
      "  output hidden = %1",
      "  %2 = linear(%1; lm_head.weight[vocab][hidden]) -> [vocab]",
      "  output logits = %2",
      "chain head '' head x 1",
  };
  EXPECT_EQ(recording.lines, expected);
  EXPECT_EQ(recording.dim_sizes["head_dim"], 20);
  EXPECT_EQ(recording.dim_sizes["kv_heads"], 2);
  EXPECT_EQ(recording.float_lists["inv_freq"].size(), 10u);
  EXPECT_DOUBLE_EQ(recording.floats["scale"], 1 / std::sqrt(20.0));
  EXPECT_EQ(recording.slots["mlp.up_proj.weight"].init, CHASSIS_INIT_NORMAL);
  EXPECT_EQ(recording.slots["model.norm.weight"].init, CHASSIS_INIT_ONES);
  EXPECT_EQ(recording.slots["lm_head.weight"].role, CHASSIS_ROLE_HEAD);
}

TEST_F(Llama, RecordsScoresOfEveryPosition) {
  ASSERT_EQ(configure(R"(, "architectures": ["LlamaForSequenceClassification"], "num_labels": 3)"), "ok");
  fake::Recording recording;
  host_.check(model().record(instance_.self(), recording.builder()));
  const std::vector<std::string> head(recording.lines.end() - 5, recording.lines.end());
  EXPECT_EQ(head, (std::vector<std::string>{
                      "block head",
                      "  %1 = rms_norm(hidden[B, T, hidden]; model.norm.weight[hidden])",
                      "  %2 = score(%1; score.weight[labels][hidden])",
                      "  output scores = %2",
                      "chain head '' head x 1",
                  }));
  EXPECT_EQ(recording.dim_sizes["labels"], 3);
  EXPECT_EQ(recording.slots["score.weight"].role, CHASSIS_ROLE_HEAD);
}

TEST_F(Llama, RecordsBiasesAndTheTiedHead) {
  ASSERT_EQ(configure(R"(, "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true)"), "ok");
  fake::Recording recording;
  host_.check(model().record(instance_.self(), recording.builder()));
  std::string text;
  for (const std::string& line : recording.lines) text += line + "\n";
  for (const char* name :
       {"self_attn.q_proj.bias[heads*head_dim]", "self_attn.o_proj.bias[hidden]", "mlp.gate_proj.bias[ffn]",
        "mlp.down_proj.bias[hidden]", "lm_head.weight[vocab][hidden] tied to model.embed_tokens.weight"}) {
    EXPECT_NE(text.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(recording.slots["mlp.down_proj.bias"].init, CHASSIS_INIT_ZEROS);
}

TEST_F(Llama, ReadsFilesWithoutTheHeadAndSkipsStoredBuffers) {
  ASSERT_EQ(configure(), "ok");
  EXPECT_EQ(mapping(), (std::vector<std::string>{"skip *rotary_emb.inv_freq", "embed_tokens.* is model.embed_tokens.*",
                                                 "layers.* is model.layers.*", "norm.* is model.norm.*"}));
}

TEST_F(Llama, SkipsAStoredCopyOfTheTiedHead) {
  ASSERT_EQ(configure(R"(, "tie_word_embeddings": true)"), "ok");
  EXPECT_EQ(mapping().at(1), "skip lm_head.weight");
}

TEST_F(Llama, CountsUnknownKeysAndPassesRefusalsOn) {
  EXPECT_EQ(configure(R"(, "soft_cap": 30.0, "use_cache": true)"), "ok");
  ASSERT_EQ(host_.counts.size(), 1u);
  EXPECT_EQ(host_.counts.begin()->second.front(), "key 'soft_cap' is unknown to model 'llama' and ignored");
  EXPECT_EQ(configure(R"(, "rope_scaling": {"type": "yarn", "factor": 2})"),
            "rope type 'yarn' is not supported by model 'llama' (supported: default, linear, llama3) "
            "[config key=rope_scaling.rope_type] [config key=rope_scaling.type]");
}

}  // namespace
