// Reading and writing config.json, by the keys of the Llama families.
#include "plugins/model/decoder/families.hpp"

#include <gtest/gtest.h>

#include "chassis/guard.hpp"

namespace {

using decoder::Config;
using decoder::Json;

Config parse_config(const std::string& text) { return decoder::parse_config(decoder::llama(), text); }
std::string write_config(const Config& config) { return decoder::write_config(decoder::llama(), config); }

Json small() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4})");
}

Config with(const char* key, Json value) {
  Json json = small();
  json[key] = std::move(value);
  return parse_config(json.dump());
}

std::string refusal(const char* key, Json value) {
  try {
    with(key, std::move(value));
  } catch (const chassis::Failure& failure) {
    EXPECT_EQ(failure.code(), CHASSIS_INVALID_ARGUMENT);
    return failure.what();
  }
  return "accepted";
}

TEST(LlamaConfig, TakesTheDefaultsOfTransformersForAbsentKeys) {
  const Config config = parse_config("{}");
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.intermediate_size, 11008);
  EXPECT_EQ(config.num_hidden_layers, 32);
  EXPECT_EQ(config.num_attention_heads, 32);
  EXPECT_EQ(config.num_key_value_heads, 32);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.function, "silu");
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope.type, "default");
  EXPECT_EQ(config.rope.theta, 10000.0);
}

TEST(LlamaConfig, UsesNumHeadsWhereKeyValueHeadsAreLeftOut) {
  EXPECT_EQ(parse_config(small().dump()).num_key_value_heads, 4);
  EXPECT_EQ(with("num_key_value_heads", nullptr).num_key_value_heads, 4);
  EXPECT_EQ(with("num_key_value_heads", 1).num_key_value_heads, 1);
}

TEST(LlamaConfig, TakesAHeadDimThatIsNotHiddenOverHeads) {
  EXPECT_EQ(with("head_dim", 20).head_dim, 20);
  Json json = small();
  json["num_attention_heads"] = 6;
  json["head_dim"] = 10;
  EXPECT_EQ(parse_config(json.dump()).head_dim, 10);
}

TEST(LlamaConfig, ReadsTheRopeSpellingsOfTransformers4And5) {
  Json four = small();
  four["rope_theta"] = 500000.0;
  four["rope_scaling"] = Json::parse(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})");
  Json five = small();
  five["rope_parameters"] = four["rope_scaling"];
  five["rope_parameters"]["rope_theta"] = 500000.0;
  for (const Json& json : {four, five}) {
    const Config config = parse_config(json.dump());
    EXPECT_EQ(config.rope.type, "llama3");
    EXPECT_EQ(config.rope.theta, 500000.0);
    EXPECT_EQ(config.rope.factor, 8.0);
    EXPECT_EQ(config.rope.original_max_position_embeddings, 8192);
    EXPECT_TRUE(config.unknown_keys.empty());
  }
  EXPECT_EQ(with("rope_scaling", {{"type", "linear"}, {"factor", 2.0}}).rope.type, "linear");
  EXPECT_EQ(with("rope_scaling", nullptr).rope.type, "default");
}

TEST(LlamaConfig, RefusesRopeTypesByName) {
  EXPECT_EQ(refusal("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}),
            "rope type 'yarn' is not supported by model 'llama' (supported: default, linear, llama3)");
  EXPECT_EQ(refusal("rope_parameters", {{"rope_type", "dynamic"}, {"factor", 4.0}}),
            "rope type 'dynamic' is not supported by model 'llama' (supported: default, linear, llama3)");
}

TEST(LlamaConfig, RefusesIncompleteAndContradictoryRopes) {
  EXPECT_EQ(refusal("rope_scaling", {{"type", "linear"}}), "rope_scaling of type 'linear' has no factor");
  EXPECT_EQ(refusal("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}),
            "rope_scaling of type 'llama3' has no low_freq_factor");
  Json both = small();
  both["rope_theta"] = 10000.0;
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_THROW(parse_config(both.dump()), chassis::Failure);
  both["rope_theta"] = 500000.0;
  EXPECT_NO_THROW(parse_config(both.dump()));
}

TEST(LlamaConfig, RefusesAnotherArchitectureByName) {
  EXPECT_EQ(refusal("architectures", {"MixtralForCausalLM"}),
            "architectures [\"MixtralForCausalLM\"] are not supported by model 'llama' (supported: LlamaForCausalLM, "
            "LlamaModel, LlamaForSequenceClassification)");
  EXPECT_EQ(refusal("model_type", "qwen2"), "model_type 'qwen2' is not supported by model 'llama' (supported: llama)");
}

TEST(LlamaConfig, RefusesContradictorySizesWithBothNumbers) {
  EXPECT_EQ(refusal("num_key_value_heads", 3), "num_attention_heads 4 is not a multiple of num_key_value_heads 3");
  for (int odd : {5, 7, 15})
    EXPECT_EQ(refusal("head_dim", odd), "head_dim " + std::to_string(odd) +
                                            " is odd (hidden_size 64, num_attention_heads 4): "
                                            "rope rotates pairs, so it must be even");
  EXPECT_EQ(refusal("num_attention_heads", 5),
            "hidden_size 64 is not a multiple of num_attention_heads 5, and head_dim is not given");
}

TEST(LlamaConfig, RefusesWhatItDoesNotCompute) {
  EXPECT_EQ(refusal("attention_dropout", 0.1), "attention_dropout 0.1 is not supported by model 'llama'");
  EXPECT_EQ(refusal("hidden_act", "mish"),
            "hidden_act 'mish' is not supported by model 'llama' (supported: silu, swish, gelu, gelu_pytorch_tanh, "
            "gelu_new, relu)");
  EXPECT_NE(refusal("quantization_config", {{"bits", 4}}), "accepted");
  EXPECT_EQ(refusal("hidden_size", "64"), "hidden_size is \"64\", expected a whole number");
  EXPECT_EQ(refusal("num_hidden_layers", 0), "num_hidden_layers is 0, expected 1 to 65536");
  EXPECT_EQ(refusal("rms_norm_eps", -1.0), "rms_norm_eps is -1, expected above 0");
  EXPECT_THROW(parse_config("[1]"), chassis::Failure);
  EXPECT_THROW(parse_config("{\"a\": "), chassis::Failure);
}

TEST(LlamaConfig, ListsUnknownKeys) {
  EXPECT_EQ(with("soft_cap", 30.0).unknown_keys, std::vector<std::string>{"soft_cap"});
  EXPECT_TRUE(with("transformers_version", "5.0.0").unknown_keys.empty());
  EXPECT_EQ(with("rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"beta", 1}}).unknown_keys,
            std::vector<std::string>{"rope_scaling.beta"});
}

TEST(LlamaConfig, WritesBothSpellingsAndReadsItselfBack) {
  Json json = small();
  json["torch_dtype"] = "bfloat16";
  json["eos_token_id"] = {1, 2};
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 20000.0}};
  const std::string written = write_config(parse_config(json.dump()));
  const Json out = Json::parse(written);
  EXPECT_EQ(out["rope_theta"], 20000.0);
  EXPECT_EQ(out["rope_scaling"], Json({{"rope_type", "linear"}, {"factor", 2.0}}));
  EXPECT_EQ(out["rope_parameters"], Json({{"rope_type", "linear"}, {"rope_theta", 20000.0}, {"factor", 2.0}}));
  EXPECT_EQ(out["dtype"], "bfloat16");
  EXPECT_EQ(out["torch_dtype"], "bfloat16");
  EXPECT_EQ(out["eos_token_id"], Json({1, 2}));
  EXPECT_EQ(out["hidden_act"], "silu");
  EXPECT_EQ(write_config(parse_config(written)), written);
  EXPECT_TRUE(parse_config(written).unknown_keys.empty());
}

TEST(LlamaConfig, WritesTheDefaultRopeWithoutScaling) {
  const Json out = Json::parse(write_config(parse_config(small().dump())));
  EXPECT_TRUE(out["rope_scaling"].is_null());
  EXPECT_EQ(out["rope_parameters"], Json({{"rope_type", "default"}, {"rope_theta", 10000.0}}));
  EXPECT_EQ(out["dtype"], "float32");
}

// Numbers from modeling_rope_utils of transformers 4.57, rounded to float32.
TEST(LlamaRope, RotatesByPowersOfTheta) {
  const auto freqs = decoder::inverse_frequencies({}, 8);
  ASSERT_EQ(freqs.size(), 4u);
  EXPECT_FLOAT_EQ(freqs[0], 1.0);
  EXPECT_FLOAT_EQ(freqs[1], 0.1f);
  EXPECT_FLOAT_EQ(freqs[2], 0.01f);
  EXPECT_FLOAT_EQ(freqs[3], 0.001f);
  EXPECT_EQ(freqs[3], static_cast<double>(static_cast<float>(freqs[3])));  // computed in float32
}

TEST(LlamaRope, DividesAllFrequenciesWhenLinear) {
  decoder::Rope rope;
  rope.type = "linear";
  rope.factor = 4;
  EXPECT_FLOAT_EQ(decoder::inverse_frequencies(rope, 8)[0], 0.25);
}

TEST(LlamaRope, KeepsFastFrequenciesAndDividesSlowOnesWhenLlama3) {
  const decoder::Rope rope = {"llama3", 500000.0, 8.0, 1.0, 4.0, 8192};
  decoder::Rope plain = rope;
  plain.type = "default";
  const auto scaled = decoder::inverse_frequencies(rope, 128), base = decoder::inverse_frequencies(plain, 128);
  ASSERT_EQ(scaled.size(), 64u);
  for (size_t i = 0; i < scaled.size(); ++i) {
    const double wavelength = 2 * 3.14159265358979 / base[i];
    if (wavelength < 8192 / 4.0) {
      EXPECT_EQ(scaled[i], base[i]) << i;
    } else if (wavelength > 8192) {
      EXPECT_FLOAT_EQ(scaled[i], base[i] / 8) << i;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(scaled[i] / ((1 - smooth) * base[i] / 8 + smooth * base[i]), 1.0, 1e-6) << i;
    }
  }
}

// As in Llama 4 Scout.
TEST(LlamaRope, DividesOrKeepsFrequenciesWhenBothFactorsOfLlama3AreEqual) {
  const Json table = {{"rope_type", "llama3"},
                      {"factor", 16.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 1.0},
                      {"original_max_position_embeddings", 8192}};
  const decoder::Rope rope = with("rope_scaling", table).rope;
  decoder::Rope plain = rope;
  plain.type = "default";
  const auto scaled = decoder::inverse_frequencies(rope, 128), base = decoder::inverse_frequencies(plain, 128);
  size_t num_kept = 0;
  for (size_t i = 0; i < scaled.size(); ++i) {
    const bool is_slow = 2 * 3.14159265358979 / base[i] > 8192;
    EXPECT_FLOAT_EQ(scaled[i], is_slow ? base[i] / 16 : base[i]) << i;
    num_kept += scaled[i] == base[i];
  }
  EXPECT_GT(num_kept, 0u);
  EXPECT_LT(num_kept, scaled.size());
  Json below = table;
  below["high_freq_factor"] = 0.5;
  EXPECT_EQ(refusal("rope_scaling", below), "rope_scaling.high_freq_factor 0.5 is below low_freq_factor 1");
}

TEST(LongRope, HasTwoSetsOfFrequenciesAndTheFactorOfThePaper) {
  decoder::Rope rope;
  rope.type = "longrope";
  rope.partial_rotary_factor = 0.5;
  rope.short_factor = {1, 2}, rope.long_factor = {4, 8};
  rope.original_max_position_embeddings = 4096;
  const chassis::Rope out = decoder::rope_attributes(rope, 8, 131072);
  EXPECT_EQ(out.rotary_dim, 4);
  EXPECT_EQ(out.long_from, 4096);
  EXPECT_FLOAT_EQ(out.inv_freq[1], 0.005f);
  EXPECT_FLOAT_EQ(out.long_inv_freq[1], 0.00125f);
  EXPECT_DOUBLE_EQ(out.factor, std::sqrt(1 + std::log(32.0) / std::log(4096.0)));
  rope.long_factor = {4};
  EXPECT_THROW(decoder::rope_attributes(rope, 8, 131072), chassis::Failure);
}

}  // namespace
