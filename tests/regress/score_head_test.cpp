// Heads of scores in files: those of other programs are read, and adapters with a head are merged into classifiers.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "host/base/json.hpp"
#include "host/config/weights_config.hpp"
#include "host/save/classifier_config.hpp"
#include "host/save/merge.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/save/weights.hpp"
#include "tests/regress/weights_file.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

Weights random_weights(std::vector<int64_t> shape, double seed = 1) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  Weights out{std::move(shape), std::vector<float>(count)};
  for (size_t i = 0; i < count; ++i) out.values[i] = static_cast<float>(std::sin(seed + static_cast<double>(i)));
  return out;
}

// A language model of one layer, and adapters of it.
class ScoreHeads : public testing::Test {
 protected:
  ScoreHeads() {
    fs::create_directory(base());
    write_text(base() + "/config.json", Json({{"architectures", {"LlamaForCausalLM"}},
                                              {"model_type", "llama"},
                                              {"vocab_size", 11},
                                              {"hidden_size", 8},
                                              {"intermediate_size", 12},
                                              {"num_hidden_layers", 1},
                                              {"num_attention_heads", 2},
                                              {"num_key_value_heads", 2},
                                              {"tie_word_embeddings", false}})
                                            .dump());
    const std::string layer = "model.layers.0.";
    for (const char* name : {"q", "k", "v", "o"})
      weights_[layer + "self_attn." + name + "_proj.weight"] = random_weights({8, 8});
    for (const char* name : {"gate", "up"}) weights_[layer + "mlp." + name + "_proj.weight"] = random_weights({12, 8});
    weights_[layer + "mlp.down_proj.weight"] = random_weights({8, 12});
    for (const std::string& name :
         {layer + "input_layernorm", layer + "post_attention_layernorm", std::string("model.norm")})
      weights_[name + ".weight"] = random_weights({8});
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) weights_[name] = random_weights({11, 8});
    save();
  }

  std::string base() const { return folder_ / "base"; }
  void save() const { write_weights(base() + "/model.safetensors", weights_); }

  // Adapts q_proj; `more` has names as in the model.
  std::string adapter(const Json& keys, const AllWeights& more) const {
    const std::string path = folder_ / "adapter";
    fs::create_directory(path);
    Json config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"target_modules", {"q_proj"}}};
    config.update(keys);
    write_text(path + "/adapter_config.json", config.dump());
    const std::string prefix = "base_model.model.", module = prefix + "model.layers.0.self_attn.q_proj.";
    AllWeights all = {{module + "lora_A.weight", random_weights({2, 8}, 3)},
                      {module + "lora_B.weight", random_weights({8, 2}, 4)}};
    for (const auto& [name, weights] : more) all[prefix + name] = weights;
    write_weights(path + "/adapter_model.safetensors", all);
    return path;
  }
  std::string merged() const { return folder_ / "merged"; }
  void merge(const std::string& adapter) const {
    merge_checkpoint(
        {.trained = adapter, .base = base(), .directory = merged(), .plugin_path = {CHASSIS_TEST_PLUGIN_DIR}});
  }

  // The head of one score that the base has.
  std::vector<float> head_of_base() const {
    save();
    Session session(weights_config({.model = base()}, "test"),
                    {.plugin_path = {CHASSIS_TEST_PLUGIN_DIR}, .target = {.without_device = true}, .num_scores = 1});
    session.allocate();
    load_weights(session, base(), BucketPair(bucket_bytes(session)));
    const float* const begin = session.parameters().find(kScoreWeight)->shard.data_as<float>();
    return {begin, begin + 8};
  }
  std::string refusal_of_base() const {
    return refusal([&] { head_of_base(); });
  }

  ScratchDirectory folder_;
  AllWeights weights_;
};

TEST_F(ScoreHeads, OfAnAdapterMakeTheMergedModelAClassifier) {
  const Weights head = random_weights({2, 8}, 7);
  merge(adapter({{"task_type", "SEQ_CLS"}, {"modules_to_save", {"classifier", "score"}}}, {{"score.weight", head}}));
  AllWeights expected = weights_;
  expected.erase("lm_head.weight");
  expected["score.weight"] = head;
  AllWeights found = read_weights(merged() + "/model.safetensors");
  const std::string changed = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_NE(found.at(changed), expected.at(changed));
  found.erase(changed), expected.erase(changed);
  EXPECT_EQ(found, expected);
  const Json config = Json::parse(text_of_file(merged() + "/config.json"));
  EXPECT_EQ(config.at("architectures"), Json::array({"LlamaForSequenceClassification"}));
  EXPECT_EQ(config.at("num_labels"), 2);
  EXPECT_EQ(config.at("problem_type"), "single_label_classification");
}

// The model is a classifier by its config.json, so its own head is replaced.
TEST_F(ScoreHeads, OfAnAdapterReplaceThatOfAClassifier) {
  merge(adapter({{"task_type", "SEQ_CLS"}}, {{"score.weight", random_weights({1, 8}, 7)}}));
  fs::remove_all(base());
  fs::rename(merged(), base());
  const Weights head = random_weights({1, 8}, 9);
  merge(adapter({{"task_type", "SEQ_CLS"}}, {{"score.weight", head}}));
  EXPECT_EQ(read_weights(merged() + "/model.safetensors").at("score.weight"), head);
  EXPECT_EQ(Json::parse(text_of_file(merged() + "/config.json")).at("problem_type"), "regression");
}

TEST_F(ScoreHeads, ThatAnAdapterLacksAreNotInvented) {
  EXPECT_HAS(refusal([&] {
               merge(adapter({{"task_type", "SEQ_CLS"}}, {}));
             }),
             "task_type: \"SEQ_CLS\": the adapter was trained with a head of scores, and this run has none");
  const std::string plain = adapter({{"task_type", "CAUSAL_LM"}}, {});
  merge(plain);
  EXPECT_TRUE(read_weights(merged() + "/model.safetensors").contains("lm_head.weight"));
}

TEST_F(ScoreHeads, OfOtherProgramsAreReadUnlessTheyHaveABias) {
  const Weights head = random_weights({1, 8}, 7);
  for (const std::string name : {"score", "value_head", "v_head.summary"}) {
    weights_[name + ".weight"] = head;
    EXPECT_EQ(head_of_base(), head.values) << name;
    weights_[name + ".bias"] = {{1}, {0.0f}};
    EXPECT_EQ(head_of_base(), head.values) << name;
    weights_[name + ".bias"] = {{1}, {0.25f}};
    EXPECT_HAS(refusal_of_base(), "has a head of scores with a bias, " + name + ".bias = 0.25");
    EXPECT_HAS(refusal_of_base(), "set it to 0 in the file");
    weights_.erase(name + ".weight");
    weights_.erase(name + ".bias");
  }
  write_weights(base() + "/value_head.safetensors",
                {{"v_head.summary.weight", head}, {"v_head.summary.bias", {{1}, {0.0f}}}});
  EXPECT_EQ(head_of_base(), head.values);
}

TEST_F(ScoreHeads, ThatAreMissingOrOfAnotherSizeAreRefusedWhereNothingIsTrained) {
  EXPECT_HAS(refusal_of_base(), "has no head of scores (score.weight [1, 8]), so its scores would be random");
  weights_["score.weight"] = random_weights({2, 8});
  EXPECT_HAS(refusal_of_base(), "score.weight is [2, 8] on disk, [1, 8] in the model");
  weights_.erase("score.weight");
  weights_["model.layers.0.mlp.extra.weight"] = random_weights({2});
  EXPECT_HAS(refusal_of_base(), "1 unexpected:\n    model.layers.0.mlp.extra.weight [2]") << "lm_head.weight is not";
}

}  // namespace
}  // namespace chassis::test
