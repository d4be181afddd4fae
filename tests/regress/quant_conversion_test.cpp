// Quantized models as files: made from values, merged into, and exported again.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/regress/small_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

// A small Llama `base`, whose rows are no whole blocks, and runs on it.
class QuantConversion : public testing::Test {
 protected:
  QuantConversion() {
    write_text(folder_ / "tokens.jsonl",
               token_rows(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 90, 41, 7, 64}, 96)));
    write_text(
        folder_ / "base.toml",
        head() +
            "[model]\nplugin = \"llama\"\nconfig = { vocab_size = 96, hidden_size = 36, intermediate_size = 57, "
            "num_hidden_layers = 3, num_attention_heads = 6, num_key_value_heads = 2, initializer_range = 0.1 }\n"
            "[optimizer]\nlr = 1e-3\n");
    write_text(folder_ / "lora.toml",
               head() +
                   "[model]\npath = \"nf4\"\n[quant]\nplugin = \"bnb4\"\n[adapter]\nplugin = \"lora\"\nrank = 4\n"
                   "[optimizer]\nlr = 2e-2\n");
    write_text(folder_ / "plain.toml", head() + "[model]\npath = \"base\"\n");
    expect_ok({"train", "base.toml", "run.output_dir=made"});
    fs::rename(folder_ / "made/final", folder_ / "base");
  }

  Outcome call(std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_PROGRAM);
    if (words[1] == "ckpt") words.insert(words.end(), {"--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
    return run_process(words, folder_.path());
  }
  std::string expect_ok(const std::vector<std::string>& words) {
    const Outcome outcome = call(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  }
  std::string refusal(const std::vector<std::string>& words) {
    const Outcome outcome = call(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    return outcome.output;
  }
  // "eval loss 4.465746 perplexity …"
  std::string eval(const std::vector<std::string>& words) {
    std::vector<std::string> command = {"eval"};
    command.insert(command.end(), words.begin(), words.end());
    const std::string output = expect_ok(command);
    const size_t at = output.find("eval loss");
    return at == output.npos ? output : output.substr(at, output.find(" perplexity", at) - at);
  }
  // Products of merged and of separate factors are rounded differently.
  static void expect_near(const std::string& loss, const std::string& expected) {
    const std::string begin = "eval loss ";
    ASSERT_TRUE(loss.starts_with(begin) && expected.starts_with(begin)) << loss << ", expected " << expected;
    EXPECT_NEAR(std::stod(loss.substr(begin.size())), std::stod(expected.substr(begin.size())), 5e-6);
  }
  std::string weights(const std::string& directory) {
    return text_of_file(folder_ / (directory + "/model.safetensors"));
  }

  ScratchDirectory folder_;

 private:
  static std::string head() {
    return "schema_version = 1\n[run]\noutput_dir = \"run\"\nmax_steps = 3\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n"
           "[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR
           "\"]\n[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[[data.eval]]\npath = \"tokens.jsonl\"\n"
           "format = \"tokens\"\n[data]\ncache_dir = \"cache\"\n[train]\nseq_len = 32\nglobal_batch_size = 12\n"
           "micro_batch_size = 1\n[precision]\ncompute = \"fp32\"\n";
  }
};

TEST_F(QuantConversion, MakesWhatARunWouldQuantizeWhileReading) {
  for (const char* options : {"quant.type=nf4", "quant.double_quant=true", "quant.type=fp4"}) {
    SCOPED_TRACE(options);
    fs::remove_all(folder_ / "nf4");
    expect_ok({"ckpt", "quantize", "base", "--out", "nf4", options});
    const std::string from_files = eval({"lora.toml"});
    fs::remove_all(folder_ / "run");
    EXPECT_EQ(eval({"lora.toml", "model.path=base", options}), from_files);
    EXPECT_NE(eval({"plain.toml"}), from_files) << "4 bits change the loss";
  }
}

TEST_F(QuantConversion, MergesAsTheRunComputed) {
  expect_ok({"ckpt", "quantize", "base", "--out", "nf4", "quant.double_quant=true"});
  expect_ok({"train", "lora.toml", "checkpoint.contents=full"});
  const std::string loss = eval({"lora.toml"});
  ASSERT_NE(loss, eval({"plain.toml", "--from", "base"}));
  const Outcome plain = call({"eval", "plain.toml"});
  EXPECT_EQ(plain.exit_code, 7);
  EXPECT_HAS(plain.output, "model.layers.0.self_attn.q_proj.weight is u8 [648, 1], and there is no [quant]");

  expect_ok({"ckpt", "merge", "run", "--out", "merged"});
  expect_near(eval({"plain.toml", "model.path=merged", "--from", "merged"}), loss);

  EXPECT_HAS(expect_ok({"ckpt", "merge", "run", "--out", "kept", "--keep-quantized"}),
             "is quantized, and so is what is merged into it: it loses precision");
  expect_ok({"ckpt", "quantize", "merged", "--out", "again", "quant.double_quant=true"});
  EXPECT_TRUE(weights("kept") == weights("again"));
  EXPECT_TRUE(nlohmann::json::parse(text_of_file(folder_ / "kept/config.json")).contains("quantization_config"));

  fs::remove_all(folder_ / "run");
  expect_ok({"train", "lora.toml", "export.merge=true"});
  EXPECT_TRUE(weights("run/final") == weights("merged"));
}

TEST_F(QuantConversion, TellsOfAMergeIntoTheOriginalWeights) {
  fs::rename(folder_ / "base", folder_ / "nf4");
  const char* told = "was trained on weights that bnb4 stores in fewer bits, and is merged into those in ";
  EXPECT_HAS(expect_ok({"train", "lora.toml", "export.merge=true"}), told);
  EXPECT_HAS(expect_ok({"ckpt", "merge", "run", "--out", "merged"}), told);
  EXPECT_TRUE(weights("run/final") == weights("merged"));
  EXPECT_HAS(refusal({"ckpt", "merge", "run", "--out", "kept", "--keep-quantized"}), "is not quantized");
}

TEST_F(QuantConversion, TellsWhichWeightsAreQuantizedOtherwiseThanInTraining) {
  expect_ok({"ckpt", "quantize", "base", "--out", "nf4"});
  expect_ok({"train", "lora.toml"});
  const auto evaluated = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "eval");
    return expect_ok(words);
  };
  const std::string otherwise = "run/final was trained on weights that were ";
  EXPECT_EQ(evaluated({"lora.toml", "--from", "run/final"}).find(otherwise), std::string::npos);
  EXPECT_HAS(evaluated({"plain.toml", "--from", "run/final"}),
             otherwise + "quantized by bnb4, and here they are not quantized");
  EXPECT_HAS(evaluated({"lora.toml", "--from", "run/final", "model.path=base", "quant.type=fp4"}),
             "run/final was trained on weights that were quantized differently: bnb_4bit_quant_type was \"nf4\", is "
             "\"fp4\"");
  expect_ok({"ckpt", "merge", "run", "--out", "merged"});
  EXPECT_HAS(
      evaluated({"lora.toml", "adapter={}", "--from", "merged"}),
      "merged is not quantized, and [quant] stores its weights in fewer bits here; quant={} uses them as they are");
  EXPECT_EQ(eval({"lora.toml", "adapter={}", "quant={}", "model.path=merged", "--from", "merged"}),
            eval({"plain.toml", "model.path=merged", "--from", "merged"}));
}

TEST_F(QuantConversion, AModelKnowsTheSizeOfItsBlocks) {
  expect_ok({"ckpt", "quantize", "base", "--out", "nf4", "quant.block_size=128"});
  EXPECT_HAS(refusal({"eval", "lora.toml", "quant.block_size=32"}),
             "quant.block_size: 32, but the model's config.json says 128; remove one of the two keys");
  expect_ok({"train", "lora.toml", "checkpoint.contents=full"});
  const std::string loss = eval({"lora.toml"});
  EXPECT_EQ(text_of_file(folder_ / "run/resolved.toml").find("block_size"), std::string::npos);
  EXPECT_EQ(eval({"run/resolved.toml"}), loss);
  expect_ok({"ckpt", "merge", "run", "--out", "merged"});
  expect_near(eval({"plain.toml", "model.path=merged", "--from", "merged"}), loss);
  expect_ok({"ckpt", "merge", "run", "--out", "kept", "--keep-quantized"});
  expect_ok({"ckpt", "export", "kept", "exported"});
  EXPECT_TRUE(weights("kept") == weights("exported"));
}

TEST_F(QuantConversion, ComponentsAreExportedVerifiedAndCompared) {
  expect_ok({"ckpt", "quantize", "base", "--out", "nf4", "quant.double_quant=true"});
  expect_ok({"ckpt", "export", "nf4", "copy"});
  EXPECT_TRUE(weights("copy") == weights("nf4")) << "written again byte for byte";
  EXPECT_TRUE(text_of_file(folder_ / "copy/config.json") == text_of_file(folder_ / "nf4/config.json"));
  EXPECT_HAS(expect_ok({"ckpt", "verify", "nf4"}), "ok nf4: ");
  expect_ok({"ckpt", "diff", "nf4", "copy"});
  expect_ok({"ckpt", "quantize", "base", "--out", "fp4", "quant.double_quant=true", "quant.type=fp4"});
  const Outcome differs = call({"ckpt", "diff", "nf4", "fp4"});
  EXPECT_EQ(differs.exit_code, 1);
  EXPECT_HAS(differs.output, "model.layers.0.self_attn.q_proj.weight");
  // The same for a run that holds its components.
  expect_ok({"train", "lora.toml", "checkpoint.contents=full"});
  EXPECT_HAS(expect_ok({"ckpt", "verify", "run"}), "ok run/checkpoints/step-000003: ");
  std::string bytes = weights("copy");
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  write_text(folder_ / "copy/model.safetensors", bytes);
  const Outcome damaged = call({"ckpt", "verify", "copy"});
  EXPECT_EQ(damaged.exit_code, 7);
  EXPECT_HAS(damaged.output, "DAMAGED copy");
}

TEST_F(QuantConversion, TheHeadMayBeNamedAmongWhatIsSkipped) {
  expect_ok({"ckpt", "quantize", "base", "--out", "nf4"});
  expect_ok({"ckpt", "quantize", "base", "--out", "named", "quant.skip=[\"lm_head\"]"});
  EXPECT_TRUE(weights("nf4") == weights("named"));
  expect_ok({"ckpt", "quantize", "base", "--out", "fp4", "quant.type=fp4"});
  EXPECT_HAS(refusal({"eval", "lora.toml", "model.path=fp4", "quant.type=nf4"}),
             "quant.type: nf4, but the model's config.json says fp4; remove one of the two keys");
}

TEST_F(QuantConversion, RefusesWhatCannotBeQuantized) {
  expect_ok({"ckpt", "quantize", "base", "--out", "nf4"});
  EXPECT_HAS(refusal({"ckpt", "quantize", "nf4", "--out", "twice"}), "'nf4' is already quantized");
  EXPECT_HAS(refusal({"ckpt", "quantize", "base", "--out", "other", "quant.typ=nf4"}), "unknown key 'quant.typ'");
  EXPECT_HAS(refusal({"ckpt", "quantize", "base", "--out", "other", "run.seed=3"}),
             "'run.seed=3' is not an option of the quantization");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"ckpt", "quantize", "base", "--out"}, {"ckpt", "export", "base"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"other", "--format", "peft"});
    EXPECT_HAS(refusal(all), "--format peft holds an adapter, and a whole model is written");
  }
  EXPECT_HAS(refusal({"ckpt", "quantize", "missing", "--out", "other"}), "there is no missing/config.json");
  EXPECT_FALSE(fs::exists(folder_ / "other"));
}

}  // namespace
}  // namespace chassis::test
