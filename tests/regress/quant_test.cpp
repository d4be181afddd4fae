// Runs with a base in 4 bits and LoRA: the same bytes and numbers under every strategy, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/regress/small_run.hpp"
#include "tests/regress/whole_tensors.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<std::byte>> tensors;  // of the last checkpoint
};

// A Llama whose weights are no whole blocks in any row: 36 × 36, 57 × 36, 36 × 57, 12 × 36.
class QuantRun {
 public:
  QuantRun() {
    write_text(folder_ / "tokens.jsonl",
               token_rows(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 90, 41, 7, 64}, 96)));
    write_text(
        folder_ / "base.toml",
        head("made", 1) +
            "[model]\nplugin = \"llama\"\nconfig = { vocab_size = 96, hidden_size = 36, intermediate_size = 57, "
            "num_hidden_layers = 3, num_attention_heads = 6, num_key_value_heads = 2, initializer_range = 0.1 }\n"
            "[optimizer]\nlr = 1e-3\n");
    const Outcome made = run_process({CHASSIS_PROGRAM, "train", "base.toml"}, folder_.path());
    if (made.exit_code != 0) throw std::runtime_error(made.output);
    std::filesystem::rename(folder_ / "made/final", folder_ / "base");
  }

  const ScratchDirectory& folder() const { return folder_; }

  // `tables`: of the configuration; empty [quant] options are nf4 in blocks of 64.
  Outcome train(const std::string& tables, int ranks, const std::vector<std::string>& overrides = {}) {
    write_text(folder_ / "run.toml", head("run", 4) + "[model]\npath = \"base\"\n" + tables);
    std::vector<std::string> command = {CHASSIS_PROGRAM, "train", "run.toml"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    if (ranks > 1) command.insert(command.end(), {"--nproc", std::to_string(ranks)});
    return Process(command, folder_.path()).wait();
  }

  Result operator()(const std::string& tables, int ranks = 1, const std::vector<std::string>& overrides = {}) {
    std::filesystem::remove_all(folder_ / "run");
    const Outcome outcome = train(tables, ranks, overrides);
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    return result();
  }

  Result result() {
    Result result;
    std::istringstream metrics(text_of_file(folder_ / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);)
      result.losses.push_back(nlohmann::json::parse(line).at("loss"));
    LoadedPlugins plugins;
    for (const auto& [name, tensor] : whole_tensors(folder_ / "run/checkpoints/step-000004", plugins)) {
      const auto* const bytes = tensor.data_as<std::byte>();
      result.tensors[name].assign(bytes, bytes + tensor.num_bytes());
    }
    return result;
  }

 private:
  static std::string head(const std::string& run, int steps) {
    return "schema_version = 1\n[run]\noutput_dir = \"" + run + "\"\nmax_steps = " + std::to_string(steps) +
           "\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR
           "\"]\n[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[data]\ncache_dir = \"cache\"\n"
           "[train]\nseq_len = 32\nglobal_batch_size = 12\nmicro_batch_size = 1\n[attention]\nplugin = \"sdpa\"\n"
           "[kernels]\nplugins = [\"fused\", \"aten\"]\n[precision]\ncompute = \"fp32\"\n[comm]\ntimeout_s = 60\n"
           "[checkpoint]\nbucket_mib = 1\n";
  }
  ScratchDirectory folder_;
};

const std::string kLora = "[adapter]\nplugin = \"lora\"\nrank = 4\n[optimizer]\nlr = 2e-3\neps = 1e-4\n";
const std::string kFull = "[export]\nwhen = \"never\"\n";

std::string quant(const std::string& options = "") { return "[quant]\nplugin = \"bnb4\"\n" + options + kLora + kFull; }

bool is_component(const std::string& name) {
  for (const char* suffix : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".nested_offset"})
    if (name.ends_with(suffix)) return true;
  return name.ends_with("proj.weight");
}

double largest_relative(const std::vector<double>& ours, const std::vector<double>& theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  double difference = 0.0;
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
    difference = std::max(difference, std::abs(ours[i] - theirs[i]) / std::abs(theirs[i]));
  return difference;
}

TEST(Quant, TrainsLoraOnABaseInFourBits) {
  QuantRun run;
  const Result plain = run(kLora + kFull), nf4 = run(quant(), 1, {"checkpoint.contents=full"});
  ASSERT_EQ(nf4.losses.size(), 4u);
  EXPECT_GT(largest_relative(nf4.losses, plain.losses), 1e-5) << "4 bits change the loss";
  EXPECT_LT(largest_relative(nf4.losses, plain.losses), 0.1);
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  EXPECT_EQ(nf4.tensors.at(q).size(), 36u * 36 / 2);
  EXPECT_EQ(nf4.tensors.at(q + ".absmax").size(), 4u * ((36 * 36 + 63) / 64));
  EXPECT_EQ(nf4.tensors.at(q + ".quant_map").size(), 64u);
  EXPECT_EQ(nf4.tensors.at("model.embed_tokens.weight").size(), 96u * 36 * 4) << "stays as it is";
  EXPECT_EQ(nf4.tensors.at("lm_head.weight").size(), 96u * 36 * 4) << "stays as it is";
}

struct Row {
  const char* name;
  const char* toml;
};
class QuantParallel : public testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(
    , QuantParallel,
    testing::Values(Row{"ddp", "plugin = \"ddp\"\n"}, Row{"fsdp2", "plugin = \"fsdp2\"\nforward_prefetch = 1\n"},
                    Row{"zero1", "plugin = \"zero\"\nstage = 1\n"}, Row{"zero2", "plugin = \"zero\"\nstage = 2\n"},
                    Row{"zero3", "plugin = \"zero\"\nstage = 3\nstage3_param_persistence_threshold = 40\n"}),
    [](const auto& info) { return info.param.name; });

TEST_P(QuantParallel, HasTheBytesAndNumbersOfOneProcess) {
  QuantRun run;
  for (const char* options : {"", "double_quant = true\nblock_size = 32\ntype = \"fp4\"\n"}) {
    SCOPED_TRACE(options);
    const Result alone = run(quant(options), 1, {"checkpoint.contents=full"});
    size_t num_components = 0;
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(ranks);
      const Result ours = run(quant(options) + "[[parallel]]\n" + GetParam().toml, ranks, {"checkpoint.contents=full"});
      EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
      for (const auto& [name, bytes] : alone.tensors) {
        if (!is_component(name)) continue;
        EXPECT_TRUE(ours.tensors.at(name) == bytes) << name;
        ++num_components;
      }
    }
    EXPECT_EQ(num_components, 2u * 3 * 7 * (*options ? 6 : 3));
  }
}

TEST(Quant, ContinuesFromComponentsAndFromItsBase) {
  QuantRun run;
  for (const char* contents : {"full", "trained"}) {
    SCOPED_TRACE(contents);
    const std::string setting = std::string("checkpoint.contents=") + contents;
    const Result whole = run(quant("double_quant = true\n"), 1, {setting});
    std::filesystem::remove_all(run.folder() / "run");
    ASSERT_EQ(run.train(quant("double_quant = true\n"), 1, {setting, "run.max_steps=2"}).exit_code, 0);
    const Outcome rest = run.train(quant("double_quant = true\n") + "[[parallel]]\nplugin = \"fsdp2\"\n", 2, {setting});
    ASSERT_EQ(rest.exit_code, 0) << rest.output;
    const Result ours = run.result();
    EXPECT_LE(largest_relative(ours.losses, whole.losses), 2e-6);
    for (const auto& [name, bytes] : whole.tensors)
      if (is_component(name)) EXPECT_TRUE(ours.tensors.at(name) == bytes) << name;
  }
}

TEST(Quant, IsRefusedWhereItWouldBeTrained) {
  QuantRun run;
  const auto refusal = [&](const std::string& tables) {
    const Outcome outcome = run.train(tables, 1);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    return outcome.output;
  };
  EXPECT_HAS(refusal("[quant]\nplugin = \"bnb4\"\n[optimizer]\nlr = 1e-3\n"),
             "quantized parameters cannot be trained, and [quant] has no [adapter] beside it");
  EXPECT_HAS(refusal(quant() + "[freeze]\ntrain_only = [\"lora_\", \"layers\\\\.1\\\\.mlp\\\\.up_proj\\\\.weight\"]\n"),
             "freeze.train_only matches 'model.layers.1.mlp.up_proj.weight', which [quant] stores as bnb4/nf4: "
             "quantized parameters cannot be trained");
  EXPECT_HAS(refusal(quant("block_size = 48\n")), "quant.block_size: 48 is no power of 2");
  EXPECT_HAS(refusal(quant("skip = [\"proj\"]\n")), "quant.skip: 'proj' matches no linear of the model; it has ");
  EXPECT_HAS(refusal(quant("skip = [\"model\"]\n")), "[quant]: no linear is left to quantize");
}

}  // namespace
}  // namespace chassis::test
