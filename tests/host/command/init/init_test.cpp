// Configurations that `chassis init` writes, and what it refuses.
#include <gtest/gtest.h>

#include <utility>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::write_text;

const char* const kBase = R"(schema_version = 1
[run]
output_dir = "out/base"
max_steps = 1
[model]
plugin = "llama"
config = { architectures = ["LlamaForCausalLM"], hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 32, vocab_size = 264, max_position_embeddings = 300 }
[tokenizer]
plugin = "words"
path = "tokenizer"
[[data.train]]
path = "text.txt"
[data]
cache_dir = "cache"
[train]
seq_len = 16
[optimizer]
lr = 1e-3
)";

// Rows of token ids, enough for rows of as many tokens as the model can have.
std::string ids(int num_rows = 60) {
  std::string text;
  for (int i = 0; i < num_rows; ++i) {
    text += "{\"input_ids\": [1";
    for (int k = 0; k < 59; ++k) text += "," + std::to_string((i + k) % 200);
    text += "]}\n";
  }
  return text;
}

// The tokenizer of this model is not in the program's own folder, so it is not found by its file, and the data is ids;
// tests/regress/fine_tuning_test.cpp has conversations.
class Init : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::ScratchDirectory;
    std::filesystem::create_directory(*folder_ / "tokenizer");
    write_text(*folder_ / "tokenizer/words.txt", "assistant\nuser\n");
    write_text(*folder_ / "text.txt", "one line\nand another line of text\n");
    write_text(*folder_ / "base.toml", kBase);
    const Outcome trained = chassis({"train", "base.toml"});
    ASSERT_EQ(trained.exit_code, 0) << trained.output;
    std::filesystem::rename(*folder_ / "out/base/final", *folder_ / "model");
  }
  static void TearDownTestSuite() { delete std::exchange(folder_, nullptr); }

  static Outcome chassis(std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_TEST_BINARY_DIR "/bin/chassis");
    words.insert(words.end(), {"--plugin-path", CHASSIS_TEST_STUB_DIR});
    return test::run_process(words, folder_->path());
  }
  static Outcome init(std::vector<std::string> words) {
    words.insert(words.begin(), {"init", "run.toml", "--model", "model"});
    return chassis(words);
  }
  static std::string made() { return test::text_of_file(*folder_ / "run.toml"); }
  void SetUp() override { std::filesystem::remove(*folder_ / "run.toml"); }

  static test::ScratchDirectory* folder_;
};
test::ScratchDirectory* Init::folder_ = nullptr;

TEST_F(Init, RefusesAFileThatNoCommandWouldRead) {
  write_text(*folder_ / "ids.jsonl", ids());
  const Outcome outcome = chassis({"init", "q.yaml", "--model", "model", "--data", "ids.jsonl"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_HAS(outcome.output, "'q.yaml' is YAML, judging by its name");
  EXPECT_FALSE(std::filesystem::exists(*folder_ / "q.yaml"));
}

TEST_F(Init, AModelWithoutWeightsIsAnsweredWithRandomOnes) {
  write_text(*folder_ / "ids.jsonl", ids());
  std::filesystem::copy(*folder_ / "model", *folder_ / "bare");
  for (const char* name : {"model.safetensors", "manifest.json"})
    std::filesystem::remove(*folder_ / (std::string("bare/") + name));
  ASSERT_EQ(chassis({"init", "run.toml", "--model", "bare", "--data", "ids.jsonl"}).exit_code, 0);
  const Outcome refused = chassis({"check", "run.toml"});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_HAS(refused.output, "hint: without weights, a run starts from random ones with model.init = \"random\"");
}

TEST_F(Init, RefusesAModelWhoseWeightsCannotBeRead) {
  write_text(*folder_ / "ids.jsonl", ids());
  const auto refused = [&](const std::string& model, const std::string& message) {
    const Outcome outcome = chassis({"init", "run.toml", "--model", model, "--data", "ids.jsonl"});
    EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
    EXPECT_HAS(outcome.output, message);
    EXPECT_FALSE(std::filesystem::exists(*folder_ / "run.toml"));
  };
  const auto copy_without_manifest = [&](const std::string& name) {
    std::filesystem::copy(*folder_ / "model", *folder_ / name);
    std::filesystem::remove(*folder_ / (name + "/manifest.json"));
    return *folder_ / (name + "/model.safetensors");
  };
  std::filesystem::resize_file(copy_without_manifest("cut"), 100);
  refused("cut", "model.safetensors: the header claims ");
  write_text(copy_without_manifest("garbage"), std::string(16, '\0') + "no header");
  refused("garbage", "model.safetensors: the header does not begin with '{'");
  const auto gone = copy_without_manifest("gone");
  std::filesystem::remove(gone);
  std::filesystem::create_symlink("blob", gone);
  refused("gone", "model.safetensors' is a link to 'blob', which does not exist, expected a file");
}

TEST_F(Init, CheckRefusesWeightsThatDoNotFitAsTrainDoes) {
  write_text(*folder_ / "ids.jsonl", ids());
  std::filesystem::copy(*folder_ / "model", *folder_ / "wide");
  std::filesystem::remove(*folder_ / "wide/manifest.json");
  ASSERT_EQ(chassis({"init", "run.toml", "--model", "wide", "--data", "ids.jsonl"}).exit_code, 0);
  ASSERT_EQ(chassis({"check", "run.toml"}).exit_code, 0);
  std::string config = test::text_of_file(*folder_ / "wide/config.json");
  const std::string was = "\"intermediate_size\": 32";
  ASSERT_NE(config.find(was), std::string::npos) << config;
  write_text(*folder_ / "wide/config.json", config.replace(config.find(was), was.size(), "\"intermediate_size\": 48"));
  for (const std::string method : {"full", "lora", "qlora"}) {
    std::filesystem::remove(*folder_ / "run.toml");
    ASSERT_EQ(chassis({"init", "run.toml", "--model", "wide", "--data", "ids.jsonl", "--method", method}).exit_code, 0);
    std::vector<std::string> messages;
    for (const char* verb : {"check", "train"}) {
      const Outcome refused = chassis({verb, "run.toml", "run.output_dir=out/wide-" + method});
      EXPECT_EQ(refused.exit_code, 7) << verb << " " << method << "\n" << refused.output;
      const size_t error = refused.output.find("error: 'wide' does not fit the model:");
      ASSERT_NE(error, std::string::npos) << verb << " " << method << "\n" << refused.output;
      EXPECT_HAS(refused.output, "mlp.down_proj.weight is [16, 32] on disk, [16, 48] in the model");
      messages.push_back(refused.output.substr(error, refused.output.rfind(" in the model") - error));
    }
    EXPECT_EQ(messages[0], messages[1]);
  }
}

TEST_F(Init, MakesAConfigurationThatCheckAccepts) {
  write_text(*folder_ / "ids.jsonl", ids());
  const Outcome outcome = init({"--data", "ids.jsonl"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(outcome.output, "next: chassis check run.toml; chassis data preview run.toml; chassis train run.toml");
  EXPECT_HAS(made(), "format = \"tokens\"");
  EXPECT_HAS(made(), "its rows have the keys input_ids");
  EXPECT_HAS(made(), "task = \"pretrain\"");
  EXPECT_HAS(made(), "seq_len = 300");
  EXPECT_HAS(made(), "the model was made for 300");
  const Outcome check = chassis({"check", "run.toml"});
  EXPECT_EQ(check.exit_code, 0) << check.output << made();
}

TEST_F(Init, ReadsAllFilesOfAFolder) {
  for (const char* name : {"many/a.jsonl", "many/b.jsonl"}) {
    std::filesystem::create_directories(*folder_ / "many");
    write_text(*folder_ / name, ids(6));
  }
  const Outcome outcome = init({"--data", "many"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(made(), "seq_len = 64") << "720 tokens in all";
  EXPECT_HAS(made(), "about 12 steps in all");
  const Outcome trained = chassis({"train", "run.toml"});
  EXPECT_EQ(trained.exit_code, 0) << trained.output << made();
}

TEST_F(Init, RefusesATextThatIsShorterThanARow) {
  write_text(*folder_ / "few.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
  const Outcome outcome = init({"--data", "few.jsonl"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_HAS(outcome.output, "few.jsonl has 3 tokens in all, and a row of a run has at least 64");
  EXPECT_FALSE(std::filesystem::exists(*folder_ / "run.toml"));
}

TEST_F(Init, NamesNoLineOfAFileThatIsNotWritten) {
  write_text(*folder_ / "ids.jsonl", ids());
  std::filesystem::create_directory(*folder_ / "other");
  write_text(*folder_ / "other/config.json", R"({"architectures": ["OtherForCausalLM"]})");
  const Outcome outcome = chassis({"init", "run.toml", "--model", "other", "--data", "ids.jsonl"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_HAS(outcome.output, "error: no installed model plugin supports the architecture OtherForCausalLM");
  EXPECT_EQ(outcome.output.find("run.toml:"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("ForSequenceClassification"), std::string::npos) << outcome.output;
}

TEST_F(Init, AModelOfTheHubIsNamedByItsPrefix) {
  write_text(*folder_ / "ids.jsonl", ids());
  const Outcome outcome = chassis({"init", "run.toml", "--model", "Org/Name", "--data", "ids.jsonl"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_HAS(outcome.output, "--model Org/Name: there is no such folder");
  EXPECT_HAS(outcome.output, "hint: \"hub:Org/Name\" names that model in the local Hugging Face cache");
}

TEST_F(Init, ReplacesNoFileWithoutForce) {
  write_text(*folder_ / "ids.jsonl", ids());
  write_text(*folder_ / "run.toml", "mine");
  const Outcome refused = init({"--data", "ids.jsonl"});
  EXPECT_EQ(refused.exit_code, 7);
  EXPECT_HAS(refused.output, "'run.toml' exists, and is not replaced");
  EXPECT_EQ(made(), "mine");
  EXPECT_EQ(init({"--data", "ids.jsonl", "--force"}).exit_code, 0);
  EXPECT_HAS(made(), "schema_version = 1");
}

TEST_F(Init, WritesAnAdapterForLora) {
  write_text(*folder_ / "ids.jsonl", ids());
  const Outcome lora = init({"--data", "ids.jsonl", "--method", "lora", "--force"});
  ASSERT_EQ(lora.exit_code, 0) << lora.output;
  EXPECT_HAS(made(), "[adapter]\nplugin = \"lora\"");
  EXPECT_HAS(made(), "rank = 8 ");
  EXPECT_HAS(made(), "lr = 2e-4");
  const Outcome qlora = init({"--data", "ids.jsonl", "--method", "qlora", "--force"});
  ASSERT_EQ(qlora.exit_code, 0) << qlora.output;
  EXPECT_HAS(made(), "[quant]\nplugin = \"bnb4\"");
  const Outcome checked = chassis({"check", "run.toml"});
  EXPECT_EQ(checked.exit_code, 0) << checked.output;
  ASSERT_EQ(init({"--data", "ids.jsonl", "--method", "lora", "--force"}).exit_code, 0);
  const Outcome elsewhere = chassis({"train", "run.toml", "run.output_dir=out/base"});
  EXPECT_EQ(elsewhere.exit_code, 2);
  EXPECT_HAS(elsewhere.output, "adapter.plugin");
  const Outcome trained = chassis({"train", "run.toml", "run.epochs=1", "run.output_dir=out/lora"});
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_TRUE(std::filesystem::exists(*folder_ / "out/lora/final/adapter_model.safetensors"));
}

// PEFT has one branch for a module whose weight in files is that of several linears.
TEST_F(Init, LeavesOutModulesThatFilesJoin) {
  std::filesystem::create_directory(*folder_ / "joined");
  std::filesystem::copy_file(*folder_ / "tokenizer/words.txt", *folder_ / "joined/words.txt",
                             std::filesystem::copy_options::overwrite_existing);
  write_text(*folder_ / "joined/config.json",
             R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 264, "n_embd": 16,
                 "n_layer": 2, "n_head": 2, "n_positions": 300})");
  write_text(*folder_ / "ids.jsonl", ids());
  const Outcome made_for_gpt2 =
      chassis({"init", "run.toml", "--model", "joined", "--data", "ids.jsonl", "--method", "lora", "--force"});
  ASSERT_EQ(made_for_gpt2.exit_code, 0) << made_for_gpt2.output;
  EXPECT_HAS(made(), "exclude = [\"c_attn\"]");
  ASSERT_EQ(init({"--data", "ids.jsonl", "--method", "lora", "--force"}).exit_code, 0);
  EXPECT_EQ(made().find("exclude"), std::string::npos) << made();
}

TEST_F(Init, ReadsAModelInFourBits) {
  write_text(*folder_ / "ids.jsonl", ids());
  const Outcome quantized = chassis({"ckpt", "quantize", "model", "--out", "model4", "--quant", "bnb4"});
  ASSERT_EQ(quantized.exit_code, 0) << quantized.output;
  const std::vector<std::string> command = {"init", "run.toml", "--model", "model4", "--data", "ids.jsonl"};
  const Outcome written = chassis(command);
  ASSERT_EQ(written.exit_code, 0) << written.output;
  EXPECT_HAS(made(), "[adapter]\nplugin = \"lora\"");
  EXPECT_HAS(made(), "[quant]\nplugin = \"bnb4\"");
  EXPECT_EQ(made().find("nf4"), std::string::npos) << "the model says so itself";
  const Outcome checked = chassis({"check", "run.toml"});
  EXPECT_EQ(checked.exit_code, 0) << checked.output;
  std::vector<std::string> all = command;
  all.insert(all.end(), {"--method", "full", "--force"});
  const Outcome refused = chassis(all);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_HAS(refused.output, "--method full trains all weights, and those of model4 are quantized");
}

TEST_F(Init, RefusesByNameWhatIsNotThere) {
  write_text(*folder_ / "ids.jsonl", ids());
  const auto refused = [&](std::vector<std::string> words, const std::string& part) {
    const Outcome outcome = init(std::move(words));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_HAS(outcome.output, part);
    EXPECT_FALSE(std::filesystem::exists(*folder_ / "run.toml"));
  };
  refused({"--data", "ids.jsonl", "--method", "dora"}, "--method dora is unknown");
  refused({"--data", "ids.jsonl", "--task", "dpo"}, "--task dpo is unknown\nhint: --method dpo chooses it");
  refused({"--data", "ids.jsonl", "--method", "dpo"}, "--method dpo trains on rows of format \"preference\"");
  refused({}, "--data is missing");
  const Outcome hub = chassis({"init", "run.toml", "--model", "hub:../x", "--data", "none.jsonl"});
  EXPECT_HAS(hub.output, "--model hub:../x: expected hub:Org/Name");
  EXPECT_EQ(hub.output.find("none.jsonl"), std::string::npos) << "one error, and no consequence of it";
  refused({"--data", "none.jsonl"}, "none.jsonl");
  write_text(*folder_ / "pairs.jsonl", R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  refused({"--data", "pairs.jsonl", "--task", "sft"}, "the data is \"preference\"");
  refused({"--data", "pairs.jsonl", "--task", "sft"},
          "hint: --format prompt_completion trains the better answers alone");
  refused({"--data", "pairs.jsonl", "--method", "dpo", "--task", "reward"}, "--method dpo trains task preference");
  refused({"--data", "pairs.jsonl", "--method", "dpo,kto"}, "names two methods of one sort");
  write_text(*folder_ / "strange.jsonl", R"({"frage": "a", "antwort": "b"})");
  refused({"--data", "strange.jsonl"}, "rows with the keys antwort, frage fit no format");
  write_text(*folder_ / "broken.jsonl", "{\"messages\": 1}\n{oops\n");
  refused({"--data", "broken.jsonl"}, "broken.jsonl:2");
  write_text(*folder_ / "chats.jsonl", R"({"messages": [{"role": "user", "content": "a"}]})");
  refused({"--data", "chats.jsonl", "--task", "pretrain"},
          "--task pretrain trains on rows of format \"text\" or \"tokens\"");
}

}  // namespace
}  // namespace chassis
