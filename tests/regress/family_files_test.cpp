// Model directories of every family: sequence-classification heads, and files or configurations that do not fit.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

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
  // The bytes of the parameters that a run of this directory loads, by name.
  std::map<std::string, std::string> loaded() const {
    save();
    const SmallRun run({"interval", "[\"aten\"]"}, "path = \"" + path() + "\"\n");
    run.write(random_documents({40}));
    Session session(load_config(run.config_path(), {}, ConfigUse::kTraining),
                    {.plugin_path = {CHASSIS_TEST_PLUGIN_DIR}});
    session.allocate();
    load_weights(session, path());
    std::map<std::string, std::string> bytes;
    for (const auto& p : session.parameters().all())
      bytes[p->name].assign(p->stored().data_as<char>(), p->stored().num_bytes());
    return bytes;
  }
  // The tensors that a run of this directory exports after one step, and those that `ckpt export` makes of its
  // checkpoint.
  std::pair<StoredTensors, StoredTensors> trained() const {
    save();
    const SmallRun run({"interval", "[\"fused\", \"aten\"]"}, "path = \"" + path() + "\"\n");
    run.write(random_documents({40, 40, 40, 40}));
    const std::string output = run.folder() / "run", again = run.folder() / "again";
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"train", run.config_path(), "run.max_steps=1", "train.micro_batch_size=2"},
          {"ckpt", "export", output + "/checkpoints/step-000001", again}}) {
      std::vector<std::string> command = {CHASSIS_PROGRAM};
      command.insert(command.end(), words.begin(), words.end());
      command.insert(command.end(), {"--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
      Process process(command, folder_.path());
      const Outcome outcome = process.wait();
      if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
      EXPECT_EQ(outcome.output.find("export differs"), std::string::npos) << outcome.output;
    }
    return {read_tensors(output + "/final/model.safetensors"), read_tensors(again + "/model.safetensors")};
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

// The tensors of a model with its experts in other forms.
class ExpertForms {
 public:
  enum Form { kSeparate, kJoined, kStacked };
  static constexpr const char* kLinears[] = {"gate_proj", "up_proj", "down_proj"};

  explicit ExpertForms(const ModelFolder& model)
      : family_(model.config.at("model_type").get<std::string>()), rest_(model.tensors) {
    const int64_t num_layers = model.config.at("num_hidden_layers");
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      if (!rest_.contains(prefix(layer) + (is_llama4() ? "router.weight" : "gate.weight"))) continue;
      if (is_llama4())
        take_joined(layer);
      else
        take_separate(layer);
    }
  }

  StoredTensors as(Form form) const {
    StoredTensors out = rest_;
    for (const auto& [layer, linears] : experts_) {
      const std::string before = prefix(layer);
      if (form == kJoined) {
        const std::string joined = "model.layers." + std::to_string(layer) + (is_llama4() ? ".feed_forward" : ".mlp");
        const StoredTensor& gate = linears[0];
        StoredTensor both{{gate.shape[0], 2 * gate.shape[1], gate.shape[2]}, ""};
        const size_t matrix = gate.bytes.size() / static_cast<size_t>(gate.shape[0]);
        for (size_t at = 0; at < gate.bytes.size(); at += matrix)
          both.bytes += gate.bytes.substr(at, matrix) + linears[1].bytes.substr(at, matrix);
        out[joined + ".experts.gate_up_proj"] = is_llama4() ? turned(both) : both;
        out[joined + ".experts.down_proj"] = is_llama4() ? turned(linears[2]) : linears[2];
        if (family_ != "mixtral") continue;
        out[joined + ".gate.weight"] = out.at(before + "gate.weight");
        out.erase(before + "gate.weight");
        continue;
      }
      for (size_t i = 0; i < 3; ++i) {
        if (form == kStacked) {
          out[before + (is_llama4() ? "experts." : "switch_mlp.") + kLinears[i] + ".weight"] = linears[i];
          continue;
        }
        const size_t matrix = linears[i].bytes.size() / static_cast<size_t>(linears[i].shape[0]);
        for (int64_t e = 0; e < linears[i].shape[0]; ++e)
          out[name(layer, e, i)] = {{linears[i].shape[1], linears[i].shape[2]},
                                    linears[i].bytes.substr(static_cast<size_t>(e) * matrix, matrix)};
      }
    }
    return out;
  }

  // [E, a, b] as [E, b, a].
  static StoredTensor turned(const StoredTensor& in) {
    StoredTensor out{{in.shape[0], in.shape[2], in.shape[1]}, ""};
    for (int64_t e = 0; e < in.shape[0]; ++e)
      for (int64_t b = 0; b < in.shape[2]; ++b)
        for (int64_t a = 0; a < in.shape[1]; ++a)
          out.bytes += in.bytes.substr(static_cast<size_t>((e * in.shape[1] + a) * in.shape[2] + b) * 4, 4);
    return out;
  }

 private:
  bool is_llama4() const { return family_ == "llama4_text"; }
  std::string prefix(int64_t layer) const {
    return "model.layers." + std::to_string(layer) +
           (is_llama4()            ? ".feed_forward."
            : family_ == "mixtral" ? ".block_sparse_moe."
                                   : ".mlp.");
  }
  std::string name(int64_t layer, int64_t expert, size_t linear) const {
    constexpr const char* kOfMixtral[] = {"w1", "w3", "w2"};
    return prefix(layer) + "experts." + std::to_string(expert) + "." +
           (family_ == "mixtral" ? kOfMixtral[linear] : kLinears[linear]) + ".weight";
  }
  void take_separate(int64_t layer) {
    for (size_t i = 0; i < 3; ++i) {
      StoredTensor all;
      for (int64_t e = 0; rest_.contains(name(layer, e, i)); ++e) {
        const StoredTensor& one = rest_.at(name(layer, e, i));
        all.shape = {e + 1, one.shape[0], one.shape[1]};
        all.bytes += one.bytes;
        rest_.erase(name(layer, e, i));
      }
      experts_[layer].push_back(all);
    }
  }
  void take_joined(int64_t layer) {
    const std::string both = prefix(layer) + "experts.gate_up_proj", down = prefix(layer) + "experts.down_proj";
    const StoredTensor rows = turned(rest_.at(both));
    const int64_t width = rows.shape[1] / 2;
    const size_t matrix = rows.bytes.size() / static_cast<size_t>(rows.shape[0]) / 2;
    for (size_t i = 0; i < 2; ++i) {
      StoredTensor half{{rows.shape[0], width, rows.shape[2]}, ""};
      for (size_t at = i * matrix; at < rows.bytes.size(); at += 2 * matrix)
        half.bytes += rows.bytes.substr(at, matrix);
      experts_[layer].push_back(half);
    }
    experts_[layer].push_back(turned(rest_.at(down)));
    rest_.erase(both);
    rest_.erase(down);
  }

  std::string family_;
  StoredTensors rest_;
  std::map<int64_t, std::vector<StoredTensor>> experts_;  // by layer: gate, up and down, [E, out, in]
};

class ExpertFiles : public testing::TestWithParam<SmallFamily> {};
std::vector<SmallFamily> expert_families() {
  std::vector<SmallFamily> families = small_families();
  std::erase_if(families, [](const SmallFamily& family) { return !family.has_experts(); });
  return families;
}
INSTANTIATE_TEST_SUITE_P(, ExpertFiles, testing::ValuesIn(expert_families()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ExpertFiles, AreReadInEveryFormAndExportedInTheirOwn) {
  ModelFolder model(GetParam());
  const ExpertForms forms(model);
  const StoredTensors published = model.tensors;
  EXPECT_EQ(forms.as(GetParam().name == "llama4" ? ExpertForms::kJoined : ExpertForms::kSeparate), published);
  const std::map<std::string, std::string> parameters = model.loaded();
  for (const auto form : {ExpertForms::kSeparate, ExpertForms::kJoined, ExpertForms::kStacked}) {
    model.tensors = forms.as(form);
    EXPECT_EQ(model.loaded(), parameters) << form;
    EXPECT_EQ(model.refusal_to_export(), "") << form;
    EXPECT_EQ(read_tensors(model.exported() + "/model.safetensors"), model.tensors) << form;
    fs::remove_all(model.exported());
  }
}

TEST(FamilyFiles, RunsExportExpertsInTheFormOfTheirModel) {
  for (const char* family : {"mixtral", "llama4"}) {
    ModelFolder model(family_of(family));
    const ExpertForms forms(model);
    const auto other = std::string(family) == "llama4" ? ExpertForms::kSeparate : ExpertForms::kJoined;
    for (const auto form : {other, ExpertForms::kStacked}) {
      model.tensors = forms.as(form);
      const auto [final, again] = model.trained();
      EXPECT_EQ(final, again) << family << " " << form;
      ASSERT_EQ(final.size(), model.tensors.size()) << family << " " << form;
      for (const auto& [name, tensor] : model.tensors) {
        ASSERT_TRUE(final.contains(name)) << name;
        EXPECT_EQ(final.at(name).shape, tensor.shape) << name;
      }
    }
  }
}

TEST(FamilyFiles, ExpertsOfAnotherOrientationAreRefused) {
  ModelFolder model(family_of("qwen3_moe"));
  const ExpertForms forms(model);
  model.tensors = forms.as(ExpertForms::kJoined);
  for (const char* linear : {"gate_up_proj", "down_proj"}) {
    StoredTensor& tensor = model.tensors.at(std::string("model.layers.1.mlp.experts.") + linear);
    tensor = ExpertForms::turned(tensor);
  }
  std::string said = model.refusal();
  EXPECT_HAS(said, "'" + model.path() + "' does not fit the model:");
  EXPECT_HAS(said, "model.layers.1.mlp.experts.gate_up_proj is [6, 32, 48] on disk, [6, 48, 32] in the model");
  EXPECT_HAS(said, "model.layers.1.mlp.experts.down_proj is [6, 24, 32] on disk, [6, 32, 24] in the model");

  model.tensors = forms.as(ExpertForms::kStacked);
  StoredTensor& up = model.tensors.at("model.layers.1.mlp.switch_mlp.up_proj.weight");
  up = ExpertForms::turned(up);
  EXPECT_HAS(model.refusal(),
             "model.layers.1.mlp.switch_mlp.up_proj.weight is [6, 32, 24] on disk, [6, 24, 32] in the model");

  ModelFolder llama4(family_of("llama4"));
  llama4.tensors = ExpertForms(llama4).as(ExpertForms::kJoined);
  StoredTensor& joined = llama4.tensors.at("model.layers.1.feed_forward.experts.gate_up_proj");
  joined = ExpertForms::turned(joined);
  EXPECT_HAS(llama4.refusal(),
             "model.layers.1.feed_forward.experts.gate_up_proj is [6, 40, 32] on disk, [6, 32, 40] in the model");
}

TEST(FamilyFiles, SquareExpertsAreNotReadStacked) {
  SmallFamily family = family_of("olmoe");
  const std::string width = "intermediate_size = 56";
  family.model.replace(family.model.find(width), width.size(), "intermediate_size = 32");
  ModelFolder model(family);
  const ExpertForms forms(model);
  model.tensors = forms.as(ExpertForms::kJoined);
  EXPECT_EQ(model.refusal(), "");
  model.tensors = forms.as(ExpertForms::kStacked);
  const std::string said = model.refusal();
  EXPECT_HAS(said, "model.layers.0.mlp.experts.0.gate_proj.weight [32, 32]");
  EXPECT_HAS(said, "model.layers.0.mlp.switch_mlp.down_proj.weight [6, 32, 32]");
}

TEST(FamilyFiles, ExpertsInTwoFormsAreRefused) {
  ModelFolder model(family_of("mixtral"));
  const ExpertForms forms(model);
  model.tensors.merge(forms.as(ExpertForms::kJoined));
  const std::string said = model.refusal();
  EXPECT_HAS(said, "unexpected:");
  EXPECT_HAS(said, "model.layers.0.mlp.experts.gate_up_proj [5, 112, 32]");
  EXPECT_HAS(said, "model.layers.0.mlp.gate.weight [5, 32]");
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
