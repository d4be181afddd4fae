// Model directories of every family: sequence-classification heads, and files or configurations that do not fit.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "host/base/json.hpp"
#include "host/save/export.hpp"
#include "host/save/weights.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/regress/small_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

struct StoredTensor {
  std::vector<int64_t> shape;
  std::string bytes;  // float32
  bool operator==(const StoredTensor&) const = default;
};
using StoredTensors = std::map<std::string, StoredTensor>;

StoredTensors read_tensors(const std::string& path) {
  const std::string file = text_of_file(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  StoredTensors tensors;
  const Json header = Json::parse(file.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    EXPECT_EQ(entry.at("dtype"), "F32");
    tensors[name] = {entry.at("shape").get<std::vector<int64_t>>(), file.substr(8 + header_bytes + begin, end - begin)};
  }
  return tensors;
}

void write_tensors(const std::string& path, const StoredTensors& tensors) {
  Json header = Json::object();
  std::string bytes;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", "F32"},
                    {"shape", tensor.shape},
                    {"data_offsets", {bytes.size(), bytes.size() + tensor.bytes.size()}}};
    bytes += tensor.bytes;
  }
  const std::string text = header.dump();
  const uint64_t header_bytes = text.size();
  std::string file(sizeof header_bytes, '\0');
  std::memcpy(file.data(), &header_bytes, sizeof header_bytes);
  write_text(path, file + text + bytes);
}

StoredTensor random_tensor(std::vector<int64_t> shape) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(std::sin(static_cast<double>(i + 1)));
  return {std::move(shape), std::string(reinterpret_cast<const char*>(values.data()), count * sizeof(float))};
}

// A directory as the program exports it, to be edited.
class ModelFolder {
 public:
  explicit ModelFolder(const SmallFamily& family) {
    const SmallRun run({"interval", "[\"fused\", \"aten\"]"}, family.model);
    run.write(random_documents({40, 40, 40, 40}));
    Process process({CHASSIS_PROGRAM, "train", run.config_path(), "run.max_steps=1", "train.micro_batch_size=2",
                     "--plugin-path", CHASSIS_TEST_PLUGIN_DIR},
                    folder_.path());
    const Outcome outcome = process.wait();
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    fs::create_directory(path());
    write_text(path() + "/config.json", text_of_file(run.folder() / "run/final/config.json"));
    tensors = read_tensors(run.folder() / "run/final/model.safetensors");
    config = Json::parse(text_of_file(path() + "/config.json"));
    save();
  }

  StoredTensors tensors;
  Json config = nullptr;

  std::string path() const { return folder_ / "model"; }
  std::string exported() const { return folder_ / "exported"; }
  void save() const {
    write_tensors(path() + "/model.safetensors", tensors);
    write_text(path() + "/config.json", config.dump());
  }
  // The refusal of a run of this directory; "" if its weights load.
  std::string refusal(ConfigUse use = ConfigUse::kTraining, const Providers& with = {"interval", "[\"aten\"]"}) const {
    save();
    const SmallRun run(with, "path = \"" + path() + "\"\n[[data.eval]]\npath = \"none.jsonl\"\nformat = \"tokens\"\n");
    run.write(random_documents({40}));
    return thrown_by([&] {
      Session session(load_config(run.config_path(), {}, use),
                      {.plugin_path = {CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_BINARY_DIR "/tests/sdk/plugins"}});
      session.allocate();
      load_weights(session, path());
    });
  }
  std::string refusal_to_export() const {
    save();
    return thrown_by([&] {
      export_checkpoint({.checkpoint = path(), .directory = exported(), .plugin_path = {CHASSIS_TEST_PLUGIN_DIR}});
    });
  }

 private:
  template <typename Action>
  static std::string thrown_by(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  ScratchDirectory folder_;
};

std::vector<SmallFamily> all_families() {
  std::vector<SmallFamily> families = small_families();
  families.push_back({"llama",
                      "plugin = \"llama\"\nconfig = { vocab_size = 101, hidden_size = 32, intermediate_size = 56, "
                      "num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2 }\n"});
  return families;
}

SmallFamily family_of(const std::string& name) {
  for (const SmallFamily& family : all_families())
    if (family.name == name) return family;
  throw std::runtime_error("no family " + name);
}

class Classifiers : public testing::TestWithParam<SmallFamily> {};
// transformers has no classifier of OLMoE and Llama 4.
std::vector<SmallFamily> classifying_families() {
  std::vector<SmallFamily> families = all_families();
  std::erase_if(families, [](const SmallFamily& family) { return family.name == "olmoe" || family.name == "llama4"; });
  return families;
}

INSTANTIATE_TEST_SUITE_P(, Classifiers, testing::ValuesIn(classifying_families()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Classifiers, AreLoadedAndExportedAndHaveNoLossOfTokens) {
  ModelFolder model(GetParam());
  EXPECT_EQ(model.refusal(), "");
  model.tensors.erase("lm_head.weight");
  const int64_t hidden = model.config.at(GetParam().name == "gpt2" ? "n_embd" : "hidden_size");
  model.tensors["score.weight"] = random_tensor({3, hidden});
  std::string name = model.config.at("architectures").at(0);
  name = name.substr(0, name.find(name.starts_with("GPT2") ? "LMHead" : "ForCausal"));
  name += GetParam().name == "gemma3" ? "TextForSequenceClassification" : "ForSequenceClassification";
  model.config["architectures"] = {name};
  model.config["id2label"] = {{"0", "bad"}, {"1", "good"}, {"2", "neither"}};

  for (const ConfigUse use : {ConfigUse::kTraining, ConfigUse::kEvaluation}) {
    EXPECT_HAS(model.refusal(use), "the model has no head over a vocabulary: its last block 'head' has no output ");
    EXPECT_HAS(model.refusal(use), "train.task = \"reward\" or \"classify\" trains scores");
  }
  EXPECT_EQ(model.refusal_to_export(), "");
  EXPECT_EQ(read_tensors(model.exported() + "/model.safetensors"), model.tensors);
  const Json config = Json::parse(text_of_file(model.exported() + "/config.json"));
  EXPECT_EQ(config.at("architectures"), Json::array({name}));
  EXPECT_EQ(config.at("id2label"), model.config.at("id2label"));

  model.config["id2label"] = {{"0", "bad"}, {"1", "good"}};
  EXPECT_HAS(model.refusal_to_export(), "score.weight is [3, " + std::to_string(hidden) + "] on disk, [2, " +
                                            std::to_string(hidden) + "] in the model");
  model.config["num_labels"] = 3;
  EXPECT_HAS(model.refusal_to_export(), "num_labels is 3, but id2label has 2 labels");
}

TEST(FamilyFiles, NameEveryTensorThatIsMissingOrNotRead) {
  ModelFolder model(family_of("qwen3"));
  model.tensors.erase("model.layers.1.mlp.down_proj.weight");
  model.tensors["model.layers.0.self_attn.sinks"] = random_tensor({4});
  const std::string said = model.refusal();
  EXPECT_HAS(said, "1 missing:\n    model.layers.1.mlp.down_proj.weight [32, 56]");
  EXPECT_HAS(said, "1 unexpected:\n    model.layers.0.self_attn.sinks [4]");
}

TEST(FamilyFiles, NameJoinedTensorsOfAnotherWidth) {
  ModelFolder phi3(family_of("phi3"));
  phi3.tensors["model.layers.0.self_attn.qkv_proj.weight"] = random_tensor({72, 32});
  phi3.tensors["model.layers.2.mlp.gate_up_proj.weight"] = random_tensor({56, 32});
  const std::string said = phi3.refusal();
  EXPECT_HAS(said, "model.layers.0.self_attn.qkv_proj.weight is [72, 32] on disk, [64, 32] in the model");
  EXPECT_HAS(said, "model.layers.2.mlp.gate_up_proj.weight is [56, 32] on disk, [112, 32] in the model");

  ModelFolder gpt2(family_of("gpt2"));
  gpt2.tensors["transformer.h.1.attn.c_attn.weight"] = random_tensor({90, 30});  // as torch.nn.Linear would store it
  EXPECT_HAS(gpt2.refusal(), "transformer.h.1.attn.c_attn.weight is [90, 30] on disk, [30, 90] in the model");
}

TEST(FamilyFiles, AStoredCopyOfATiedWeightMustBeEqual) {
  for (const auto& [family, owner] :
       {std::pair("qwen2", "model.embed_tokens.weight"), {"gpt2", "transformer.wte.weight"}}) {
    ModelFolder model(family_of(family));
    EXPECT_FALSE(model.tensors.contains("lm_head.weight"));
    model.tensors["lm_head.weight"] = model.tensors.at(owner);
    EXPECT_EQ(model.refusal(), "");
    EXPECT_EQ(model.refusal_to_export(), "");
    EXPECT_FALSE(read_tensors(model.exported() + "/model.safetensors").contains("lm_head.weight"));
    std::string& bytes = model.tensors.at("lm_head.weight").bytes;
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x40);
    const std::string said = model.refusal();
    EXPECT_HAS(said, "lm_head.weight [101, ");
    EXPECT_HAS(said, std::string(" differs from ") + owner);
    EXPECT_HAS(said, "tie_word_embeddings");
    fs::remove_all(model.exported());
    EXPECT_HAS(model.refusal_to_export(), "to which the model ties it");
    model.tensors["lm_head.weight"] = random_tensor({7, 3});
    EXPECT_HAS(model.refusal(), "lm_head.weight [7, 3] differs from");
  }
}

TEST(FamilyFiles, AnUntiedHeadThatIsNotStoredIsMissing) {
  ModelFolder model(family_of("qwen3"));
  model.tensors.erase("lm_head.weight");
  EXPECT_HAS(model.refusal(), "lm_head.weight [101, 32]");
}

TEST(FamilyFiles, AWindowIsRefusedByAProviderWithoutThatMask) {
  ModelFolder model(family_of("mistral"));
  const std::string said = model.refusal(ConfigUse::kTraining, {"attention_c", "[\"aten\"]"});
  EXPECT_HAS(said, "attention_c");
  EXPECT_HAS(said, "has no mask 'window'");
  model.config["sliding_window"] = nullptr;
  model.config.erase("layer_types");
  EXPECT_EQ(model.refusal(ConfigUse::kTraining, {"attention_c", "[\"aten\"]"}), "");
}

TEST(FamilyFiles, ACapOnScoresIsRefusedByAProviderThatCannot) {
  ModelFolder model(family_of("gemma2"));
  EXPECT_HAS(model.refusal(ConfigUse::kTraining, {"sdpa", "[\"aten\"]"}), "softcap");
  model.config["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(model.refusal(ConfigUse::kTraining, {"sdpa", "[\"aten\"]"}), "");
}

TEST(FamilyFiles, AnUnknownArchitectureIsAnsweredWithTheKnownOnes) {
  ModelFolder model(family_of("llama"));
  for (const char* name : {"FalconForCausalLM", "BloomForCausalLM", "LlamaForTokenClassification"}) {
    model.config["architectures"] = {name};
    const std::string said = model.refusal();
    EXPECT_HAS(said, std::string("no installed model plugin supports the architecture ") + name + "; supported: ");
    for (const char* known : {"GPT2LMHeadModel", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "LlamaForCausalLM",
                              "MistralForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
      EXPECT_HAS(said, known);
    EXPECT_EQ(said.find("did you mean"), said.npos) << said;
  }
}

}  // namespace
}  // namespace chassis::test
