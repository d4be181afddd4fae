// LoRA on experts: the numbers of one process under every kind of strategy, PEFT's files, merged models.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "host/save/weights.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/regress/small_run.hpp"
#include "tests/regress/whole_tensors.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/largest_relative.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFused = "rank = 4\ntarget_parameters = [\"experts.gate_up_proj\", \"experts.down_proj\"]\n";
constexpr const char* kDownAlone = "rank = 4\ntargets = []\ntarget_parameters = [\"experts.down_proj\"]\n";
constexpr const char* kOlder = "rank = 3\nuse_rslora = true\ntargets = [\"q_proj\", '.*\\.experts\\.\\d+\\..*']\n";
// Routers, by their modules and by their parameters.
constexpr const char* kRouters = "rank = 4\ntargets = [\"q_proj\", \"gate\"]\n";
constexpr const char* kRouterParameters =
    "rank = 4\ntargets = [\"q_proj\"]\ntarget_parameters = [\"mlp.gate.weight\", \"experts.down_proj\"]\n";

// The tensors of a file of safetensors.
struct FileTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
std::map<std::string, FileTensor> file_tensors(const std::string& path) {
  const std::string bytes = text_of_file(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  std::map<std::string, FileTensor> tensors;
  const json header = json::parse(bytes.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    FileTensor& tensor = tensors[name];
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    const auto begin = entry.at("data_offsets").at(0).get<uint64_t>(),
               end = entry.at("data_offsets").at(1).get<uint64_t>();
    tensor.values.resize((end - begin) / sizeof(float));
    std::memcpy(tensor.values.data(), bytes.data() + 8 + length + begin, end - begin);
  }
  return tensors;
}

std::map<std::string, FileTensor> adapter_file(const std::string& directory) {
  return file_tensors(directory + "/adapter_model.safetensors");
}

struct Result {
  std::vector<double> losses, grad_norms;
  Values tensors;  // from the last checkpoint
};

class ExpertRun {
 public:
  ExpertRun(const std::string& family, const std::string& adapter) {
    write_text(folder_ / "tokens.jsonl",
               token_rows(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 90, 41, 7, 64}, 96)));
    const auto families = small_families();
    const auto found = std::ranges::find(families, family, &SmallFamily::name);
    write("made", found->model, "max_steps = 1", "");
    chassis({"train", "made.toml"});
    fs::rename(folder_ / "made/final", folder_ / "base");
    adapter_ = "[adapter]\nplugin = \"lora\"\n" + adapter;
  }

  std::string operator/(const std::string& name) const { return folder_ / name; }

  // Trains into the folder `name`; `strategy` is the text of [[parallel]] and [mesh].
  void train(const std::string& name, const std::string& strategy = "", int ranks = 1,
             const std::vector<std::string>& overrides = {}) {
    write(name, "path = \"base\"\n" + adapter_, "max_steps = 6", strategy);
    std::vector<std::string> words = {"train", name + ".toml"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    if (ranks > 1) words.insert(words.end(), {"--nproc", std::to_string(ranks)});
    chassis(words);
  }
  Result result(const std::string& name) {
    Result result;
    std::istringstream metrics(text_of_file(folder_ / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(metrics, line);) {
      const auto record = json::parse(line);
      result.losses.push_back(record.at("loss"));
      result.grad_norms.push_back(record.at("grad_norm"));
    }
    LoadedPlugins plugins;
    for (const auto& [tensor, values] : whole_tensors(folder_ / (name + "/checkpoints/step-000006"), plugins))
      result.tensors[tensor] = floats_of(values);
    return result;
  }
  void chassis(std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_PROGRAM);
    const Outcome outcome = run_process(words, folder_.path());
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
  }

  // The logits of weights in a directory, with a configuration that train() has written and overrides.
  std::vector<float> logits(const std::string& config, const std::string& from, std::vector<std::string> words = {}) {
    for (const char* key : {"model.path=base", "data.cache_dir=cache"})
      words.push_back(std::string(key).insert(std::string(key).find('=') + 1, folder_.path() + "/"));
    Session session(load_config(folder_ / (config + ".toml"), words), {});
    session.allocate();
    load_weights(session, folder_ / from);
    constexpr int64_t kLength = 24;
    std::vector<int32_t> ids(kLength), positions(kLength), documents(kLength, 0);
    std::iota(ids.begin(), ids.end(), 5);
    std::iota(positions.begin(), positions.end(), 0);
    const int64_t sizes[] = {1, kLength};
    const Fields fields = {{"input_ids", Tensor::borrow(ids.data(), sizes, Dtype::i32).clone()},
                           {"positions", Tensor::borrow(positions.data(), sizes, Dtype::i32).clone()},
                           {"document_ids", Tensor::borrow(documents.data(), sizes, Dtype::i32).clone()}};
    return floats_of(session.executor().logits(fields, {}, false));
  }

  void write(const std::string& name, const std::string& model, const std::string& steps,
             const std::string& strategy) const {
    write_text(folder_ / (name + ".toml"),
               "schema_version = 1\n[run]\noutput_dir = \"" + name + "\"\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n" +
                   steps + "\n[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR "\"]\n[model]\n" + model +
                   "[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[data]\ncache_dir = \"cache\"\n"
                   "[train]\nseq_len = 32\nglobal_batch_size = 12\nmicro_batch_size = 2\n[optimizer]\nplugin = "
                   "\"adamw\"\nlr = 5e-3\neps = 1e-4\n[attention]\nplugin = \"interval\"\n[kernels]\nplugins = "
                   "[\"fused\", \"grouped\", \"aten\"]\n[precision]\ncompute = \"fp32\"\n[checkpoint]\nbucket_mib = 1\n"
                   "[comm]\ntimeout_s = 60\n" +
                   strategy);
  }

 private:
  ScratchDirectory folder_;
  std::string adapter_;
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

struct Strategy {
  const char *name, *toml;
  int ranks;
};
constexpr Strategy kFsdp2 = {"fsdp2", "[[parallel]]\nplugin = \"fsdp2\"\n", 2};
constexpr Strategy kTensor = {"tensor", "[[parallel]]\nplugin = \"tensor\"\n", 2};

void expect_the_numbers_of_one_process(ExpertRun& run, const std::vector<Strategy>& strategies) {
  run.train("alone");
  const Result alone = run.result("alone");
  ASSERT_EQ(alone.losses.size(), 6u);
  for (const Strategy& strategy : strategies) {
    SCOPED_TRACE(strategy.name);
    run.train(strategy.name, strategy.toml, strategy.ranks);
    const Result ours = run.result(strategy.name);
    ASSERT_EQ(ours.tensors.size(), alone.tensors.size());
    double tensors = 0;
    for (const auto& [name, values] : alone.tensors)
      tensors = std::max(tensors, largest_difference(ours.tensors.at(name), values));
    EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
    EXPECT_LE(largest_relative(ours.grad_norms, alone.grad_norms), 1e-5);
    EXPECT_LE(tensors, 5e-6);
    std::printf("| %s | %.1e | %.1e | %.1e |\n", strategy.name, largest_relative(ours.losses, alone.losses),
                largest_relative(ours.grad_norms, alone.grad_norms), tensors);
  }
}

// Gate and up share A, which reads rows whose gradients tensor parallelism sums; the A of down is divided.
TEST(ExpertsUnderStrategies, GiveTheNumbersOfOneProcessInMixtral) {
  ExpertRun run("mixtral", kFused);
  expect_the_numbers_of_one_process(
      run, {kFsdp2,
            kTensor,
            {"zero3", "[[parallel]]\nplugin = \"zero\"\nstage = 3\nstage3_param_persistence_threshold = 40\n", 3},
            {"sequence", "[[parallel]]\nplugin = \"tensor\"\nsequence_parallel = true\n", 2},
            {"both", "[[parallel]]\nplugin = \"tensor\"\n[[parallel]]\nplugin = \"fsdp2\"\n[mesh]\ntp = 2\n", 4},
            {"context", "[[parallel]]\nplugin = \"context\"\n", 2},
            {"pipeline", "[[parallel]]\nplugin = \"pipeline\"\n", 2}});
}

TEST(ExpertsUnderStrategies, GiveTheNumbersOfOneProcessInQwen2Moe) {
  ExpertRun run("qwen2_moe", kOlder);
  expect_the_numbers_of_one_process(run, {kFsdp2, kTensor});
}

TEST(ExpertsUnderStrategies, GiveTheNumbersOfOneProcessInLlama4) {
  ExpertRun run("llama4", kFused);
  expect_the_numbers_of_one_process(run, {kFsdp2, kTensor});
}

TEST(RoutersUnderStrategies, GiveTheNumbersOfOneProcess) {
  ExpertRun run("mixtral", kRouters);
  expect_the_numbers_of_one_process(run,
                                    {kFsdp2,
                                     kTensor,
                                     {"sequence", "[[parallel]]\nplugin = \"tensor\"\nsequence_parallel = true\n", 2},
                                     {"context", "[[parallel]]\nplugin = \"context\"\n", 2},
                                     {"pipeline", "[[parallel]]\nplugin = \"pipeline\"\n", 2}});
}

// The same adapter from a checkpoint, from its files, from the files of two ranks, continued, and merged.
void expect_the_same_everywhere(const std::string& family, const std::string& adapter) {
  SCOPED_TRACE(family + ": " + adapter);
  ExpertRun run(family, adapter);
  run.train("run");
  run.train("two", kFsdp2.toml, 2);
  const std::vector<float> trained = run.logits("run", "run/checkpoints/step-000006");
  const std::vector<std::string> from_file = {"adapter={ plugin = \"lora\", path = \"" + (run / "run/final") + "\" }"};
  EXPECT_EQ(largest_difference(run.logits("run", "run/final"), trained), 0);
  EXPECT_EQ(largest_difference(run.logits("run", "run/final", from_file), trained), 0);
  const auto one = adapter_file(run / "run/final"), two = adapter_file(run / "two/final");
  ASSERT_EQ(one.size(), two.size());
  for (const auto& [name, tensor] : one) {
    EXPECT_EQ(two.at(name).shape, tensor.shape) << name;
    EXPECT_LE(largest_difference(two.at(name).values, tensor.values), 5e-6) << name;
    const auto zeros = std::ranges::count(tensor.values, 0.0f);
    EXPECT_EQ(zeros, 0) << name << " of " << tensor.values.size();
  }
  run.chassis({"ckpt", "merge", run / "run", "--out", "merged", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
  run.write("plain", "path = \"merged\"\n", "max_steps = 1", "");
  const std::vector<std::string> merged = {"model.path=" + (run / "merged")};
  EXPECT_LE(largest_difference(run.logits("plain", "merged", merged), trained), 2e-5);
  run.write("other", "path = \"base\"\n", "max_steps = 1", "");
  EXPECT_GT(largest_difference(run.logits("other", "base"), trained), 1e-3) << "the adapter has an effect";
}

TEST(ExpertsInFiles, ComputeTheSame) {
  expect_the_same_everywhere("mixtral", kFused);
  expect_the_same_everywhere("mixtral", kOlder);
  expect_the_same_everywhere("qwen2_moe", kOlder);
  expect_the_same_everywhere("llama4", kFused);
  expect_the_same_everywhere("deepseek_v2", kDownAlone);
}

TEST(RoutersInFiles, ComputeTheSame) {
  expect_the_same_everywhere("mixtral", kRouters);
  expect_the_same_everywhere("qwen3_moe", kRouterParameters);
  expect_the_same_everywhere("llama4", "rank = 4\ntargets = [\"q_proj\", \"router\"]\n");
}

// Adapters that peft 0.21 and 0.18 wrote, and one in the form of transformers 4, merged by peft.
TEST(ExpertsInFiles, AreMergedAsPeftDoes) {
  const ScratchDirectory scratch;
  for (const std::string name : {"mixtral", "llama4", "mixtral_peft_0.18", "mixtral_transformers_4"}) {
    SCOPED_TRACE(name);
    const std::string golden = CHASSIS_TEST_SOURCE_DIR "/tests/golden/lora_experts/" + name;
    const Outcome outcome = run_process({CHASSIS_PROGRAM, "ckpt", "merge", golden + "/adapter", "--base",
                                         golden + "/base", "--out", name, "--plugin-path", CHASSIS_TEST_PLUGIN_DIR},
                                        scratch.path());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const auto ours = file_tensors(scratch / (name + "/model.safetensors")),
               theirs = file_tensors(golden + "/merged.safetensors"),
               base = file_tensors(golden + "/base/model.safetensors");
    ASSERT_EQ(ours.size(), theirs.size());
    for (const auto& [tensor, merged] : theirs) {
      EXPECT_EQ(ours.at(tensor).shape, merged.shape) << tensor;
      EXPECT_LE(largest_difference(ours.at(tensor).values, merged.values), 1e-6) << tensor;
      if (tensor.find(".experts.") != std::string::npos) {
        EXPECT_GT(largest_difference(base.at(tensor).values, merged.values), 0.1) << tensor;
      }
    }
  }
}

TEST(ExpertsInFiles, AreContinuedFromThem) {
  ExpertRun run("mixtral", kFused);
  run.train("run");
  run.write("next", "path = \"base\"\n[adapter]\nplugin = \"lora\"\npath = \"run/final\"\n", "max_steps = 1", "");
  run.chassis({"train", "next.toml", "optimizer.lr=0"});
  const auto first = adapter_file(run / "run/final"), second = adapter_file(run / "next/final");
  ASSERT_EQ(first.size(), second.size());
  for (const auto& [name, tensor] : first) EXPECT_EQ(second.at(name).values, tensor.values) << name;
  EXPECT_EQ(text_of_file(run / "run/final/adapter_config.json"), text_of_file(run / "next/final/adapter_config.json"));
}

TEST(ExpertsInFiles, HavePeftsNamesAndShapes) {
  const auto shapes = [](const std::string& family, const std::string& adapter) {
    ExpertRun run(family, adapter);
    run.train("run", "", 1, {"run.max_steps=1"});
    std::string text;
    for (const auto& [name, tensor] : adapter_file(run / "run/final"))
      if (name.find("layers.0.") != std::string::npos && name.find("self_attn") == std::string::npos)
        text += name.substr(std::strlen("base_model.model.model.layers.0.")) + " " + std::to_string(tensor.shape[0]) +
                " " + std::to_string(tensor.shape[1]) + "\n";
    return text;
  };
  EXPECT_EQ(shapes("mixtral", kFused),  // 5 experts, 32 → 2 × 56 → 32, rank 4
            "mlp.experts.base_layer.lora_A.weight 20 32\nmlp.experts.base_layer.lora_B.weight 112 20\n"
            "mlp.experts.lora_A.weight 20 56\nmlp.experts.lora_B.weight 32 20\n");
  EXPECT_EQ(shapes("mixtral", kDownAlone), "mlp.experts.lora_A.weight 20 56\nmlp.experts.lora_B.weight 32 20\n");
  EXPECT_HAS(shapes("mixtral", "rank = 3\ntargets = [\"w2\"]\n"),
             "block_sparse_moe.experts.4.w2.lora_A.weight 3 56\nblock_sparse_moe.experts.4.w2.lora_B.weight 32 3\n");
  EXPECT_EQ(shapes("mixtral", kRouters),
            "block_sparse_moe.gate.lora_A.weight 4 32\nblock_sparse_moe.gate.lora_B.weight 5 4\n");
  EXPECT_HAS(shapes("mixtral", kRouterParameters), "mlp.gate.lora_A.weight 4 32\nmlp.gate.lora_B.weight 5 4\n");
}

}  // namespace
}  // namespace chassis::test
