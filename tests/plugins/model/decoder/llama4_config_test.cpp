// config.json of Llama 4.
#include <gtest/gtest.h>

#include "plugins/model/decoder/families.hpp"

namespace {

using decoder::Config;
using decoder::Json;

// The text model of a model of text and images is read from its text_config, and written as a model of its own.
TEST(Llama4Config, ReadsTheTextOfAModelWithImagesAndWritesATextModel) {
  const std::string text = R"({"model_type": "llama4_text", "hidden_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "interleave_moe_layer_step": 2, "attn_temperature_tuning": 4})";
  const Config config = decoder::parse_config(
      decoder::llama4(), R"({"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4",
                             "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 7}, "text_config": )" +
                             text + "}");
  EXPECT_TRUE(config.has_towers);
  EXPECT_EQ(config.hidden_size, 48);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.floor_scale, 8192);
  EXPECT_EQ(config.has_no_rope, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(config.is_sliding, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(config.experts.is_dense, (std::vector<bool>{true, false, true, false}));
  EXPECT_TRUE(config.unknown_keys.empty());
  const Json written = Json::parse(decoder::write_config(decoder::llama4(), config));
  EXPECT_EQ(written["architectures"], Json({"Llama4ForCausalLM"}));
  EXPECT_EQ(written["model_type"], "llama4_text");
  EXPECT_EQ(written["dtype"], "bfloat16");
  EXPECT_EQ(written["attn_temperature_tuning"], true);
  EXPECT_EQ(written["moe_layers"], Json({1, 3}));
  EXPECT_FALSE(written.contains("vision_config"));
  const Config again = decoder::parse_config(decoder::llama4(), written.dump());
  EXPECT_FALSE(again.has_towers);
  EXPECT_EQ(again.experts.is_dense, config.experts.is_dense);
}

TEST(Llama4Config, HasNoExpertsWhereMoeLayersIsEmpty) {
  const Config config = decoder::parse_config(decoder::llama4(), R"({"moe_layers": [], "num_local_experts": 7})");
  EXPECT_EQ(config.experts.num_experts, 0);
  const Json written = Json::parse(decoder::write_config(decoder::llama4(), config));
  EXPECT_EQ(written["moe_layers"], Json::array());
  EXPECT_EQ(written["num_local_experts"], 7);
}

}  // namespace
