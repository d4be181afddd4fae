// Routers that give all tokens to the same experts, so that the others have no row: every strategy has the losses of
// one process, and memory stays as planned. And a router that would answer differently if it were asked again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/regress/small_run.hpp"
#include "tests/support/largest_relative.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kNumExperts = 6, kHidden = 32, kNumLayers = 3;

// The fp32 tensors of a file of safetensors, which can be changed in place.
class TensorFile {
 public:
  explicit TensorFile(std::string path) : path_(std::move(path)), bytes_(text_of_file(path_)) {
    uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), sizeof length);
    header_ = json::parse(bytes_.substr(8, length));
    data_ = 8 + length;
  }
  std::vector<float> read(const std::string& name) const {
    std::vector<float> values(size_of(name) / sizeof(float));
    std::memcpy(values.data(), bytes_.data() + begin_of(name), size_of(name));
    return values;
  }
  void write(const std::string& name, const std::vector<float>& values) {
    EXPECT_EQ(values.size() * sizeof(float), size_of(name));
    std::memcpy(bytes_.data() + begin_of(name), values.data(), size_of(name));
  }
  void save() const { write_text(path_, bytes_); }

 private:
  const json& entry(const std::string& name) const {
    EXPECT_EQ(header_.at(name).at("dtype"), "F32") << name;
    return header_.at(name);
  }
  size_t begin_of(const std::string& name) const { return data_ + entry(name).at("data_offsets").at(0).get<size_t>(); }
  size_t size_of(const std::string& name) const {
    const json& offsets = entry(name).at("data_offsets");
    return offsets.at(1).get<size_t>() - offsets.at(0).get<size_t>();
  }

  std::string path_, bytes_;
  json header_;
  size_t data_ = 0;
};

std::string layer_name(int layer) { return "model.layers." + std::to_string(layer) + "."; }

struct Numbers {
  std::vector<double> losses, grad_norms;
  double planned_mib = 0, measured_mib = 0;
};

// A Qwen3-MoE whose routers choose the first `num_chosen` experts for every token.
class AdversarialRun {
 public:
  explicit AdversarialRun(int num_chosen) : num_chosen_(num_chosen) {
    write_text(folder_ / "tokens.jsonl",
               token_rows(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 90, 41, 7, 64}, 96)));
    train("made",
          "plugin = \"qwen3_moe\"\nconfig = { vocab_size = 101, hidden_size = " + std::to_string(kHidden) +
              ", num_hidden_layers = " + std::to_string(kNumLayers) +
              ", num_attention_heads = 4, num_key_value_heads = 2, head_dim = 10, initializer_range = 0.1, "
              "num_experts = " +
              std::to_string(kNumExperts) + ", num_experts_per_tok = " + std::to_string(num_chosen) +
              ", moe_intermediate_size = 24, norm_topk_prob = false }\n",
          1);
    fs::rename(folder_ / "made/final", folder_ / "base");
    fs::remove(folder_ / "base/manifest.json");  // it has the checksums of the files that follow
    give_all_tokens_to_the_first();
  }

  // `strategy` is the text of [[parallel]] and [mesh].
  Numbers operator()(const std::string& strategy, int ranks, const std::vector<std::string>& overrides = {}) {
    fs::remove_all(folder_ / "run");
    const std::string output = train("run", "path = \"base\"\n", 4, strategy, ranks, overrides);
    Numbers numbers;
    std::istringstream metrics(text_of_file(folder_ / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      const auto record = json::parse(line);
      numbers.losses.push_back(record.at("loss"));
      numbers.grad_norms.push_back(record.at("grad_norm"));
    }
    std::smatch found;
    const std::regex peak(R"(memory peak ([0-9.]+) (\w+) planned, ([0-9.]+) (\w+) measured)");
    EXPECT_TRUE(std::regex_search(output, found, peak)) << output;
    if (!found.empty()) {
      const auto mib = [](double number, const std::string& unit) { return unit == "KiB" ? number / 1024 : number; };
      numbers.planned_mib = mib(std::stod(found[1]), found[2]);
      numbers.measured_mib = mib(std::stod(found[3]), found[4]);
    }
    return numbers;
  }

  // An expert without a row has a gradient of 0, with which AdamW leaves it as it is.
  void expect_that_only_the_first_were_trained() const {
    const TensorFile before(folder_ / "base/model.safetensors"), after(folder_ / "run/final/model.safetensors");
    for (int layer = 0; layer < kNumLayers; ++layer)
      for (int expert = 0; expert < kNumExperts; ++expert)
        for (const char* linear : {"gate_proj", "up_proj", "down_proj"}) {
          const std::string name =
              layer_name(layer) + "mlp.experts." + std::to_string(expert) + "." + linear + ".weight";
          EXPECT_EQ(before.read(name) != after.read(name), expert < num_chosen_) << name;
        }
  }

 private:
  // All tokens have a large first element, which alone decides. The norm before the router makes it about √hidden, so
  // logits are about 22 for those that are to be chosen, and -22 for the others.
  void give_all_tokens_to_the_first() const {
    TensorFile file(folder_ / "base/model.safetensors");
    const auto set_first_column = [&](const std::string& name, int width, auto&& value) {
      std::vector<float> values = file.read(name);
      for (size_t row = 0; row < values.size() / static_cast<size_t>(width); ++row)
        values[row * static_cast<size_t>(width)] = value(static_cast<int>(row));
      file.write(name, values);
    };
    set_first_column("model.embed_tokens.weight", kHidden, [](int) { return 6.0f; });
    for (int layer = 0; layer < kNumLayers; ++layer)
      set_first_column(layer_name(layer) + "mlp.gate.weight", kHidden,
                       [&](int expert) { return expert < num_chosen_ ? 4.0f : -4.0f; });
    file.save();
  }

  std::string train(const std::string& name, const std::string& model, int steps, const std::string& strategy = "",
                    int ranks = 1, const std::vector<std::string>& overrides = {}) const {
    write_text(folder_ / (name + ".toml"),
               "schema_version = 1\n[run]\noutput_dir = \"" + name +
                   "\"\nseed = 5\nthreads = 1\ndevice = \"cpu\"\nmax_steps = " + std::to_string(steps) +
                   "\n[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR "\"]\n[model]\n" + model +
                   "[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[data]\ncache_dir = \"cache\"\n"
                   "[train]\nseq_len = 128\nglobal_batch_size = 8\nmicro_batch_size = 4\n[optimizer]\nplugin = "
                   "\"adamw\"\nlr = 2e-3\neps = 1e-4\nweight_decay = 0.0\n[attention]\nplugin = \"interval\"\n"
                   "[kernels]\nplugins = [\"fused\", \"grouped\", \"aten\"]\n[precision]\ncompute = \"fp32\"\n"
                   "[checkpoint]\nbucket_mib = 1\n[export]\ndtype = \"fp32\"\n[comm]\ntimeout_s = 60\n" +
                   strategy);
    std::vector<std::string> words = {CHASSIS_PROGRAM, "train", name + ".toml"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    if (ranks > 1) words.insert(words.end(), {"--nproc", std::to_string(ranks)});
    const Outcome outcome = run_process(words, folder_.path());
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    return outcome.output;
  }

  const int num_chosen_;
  ScratchDirectory folder_;
};

// gloo receives pieces of sums in 1 MiB, which no plan counts; `gloo_mib` is that of the strategy.
void expect_planned(const Numbers& numbers, double gloo_mib) {
  EXPECT_GE(numbers.measured_mib, numbers.planned_mib - 0.1);
  EXPECT_LE(numbers.measured_mib, numbers.planned_mib + gloo_mib + 0.1);
}

struct Division {
  const char *name, *toml;
};
constexpr Division kDivisions[] = {
    {"fsdp2", "[[parallel]]\nplugin = \"fsdp2\"\n"},
    {"zero3", "[[parallel]]\nplugin = \"zero\"\nstage = 3\nstage3_param_persistence_threshold = 40\n"},
    {"tensor", "[[parallel]]\nplugin = \"tensor\"\n"},
    {"pipeline", "[[parallel]]\nplugin = \"pipeline\"\n"}};

void expect_the_numbers_of_one_process(AdversarialRun& run, const Numbers& alone, const Division& division,
                                       const std::vector<std::string>& overrides = {}) {
  SCOPED_TRACE(division.name);
  const Numbers ours = run(division.toml, 2, overrides);
  EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
  EXPECT_LE(largest_relative(ours.grad_norms, alone.grad_norms), 1e-5);
  expect_planned(ours, 1);
  run.expect_that_only_the_first_were_trained();
  std::printf("| %s | %.1e | %.1e | %.2f MiB planned | %.2f measured |\n", division.name,
              largest_relative(ours.losses, alone.losses), largest_relative(ours.grad_norms, alone.grad_norms),
              ours.planned_mib, ours.measured_mib);
}

TEST(AdversarialRouting, AllTokensToOneExpertUnderFsdp2) {
  AdversarialRun run(1);
  const Numbers alone = run("", 1);
  ASSERT_EQ(alone.losses.size(), 4u);
  expect_planned(alone, 0);
  run.expect_that_only_the_first_were_trained();
  expect_the_numbers_of_one_process(run, alone, kDivisions[0]);
}

class AdversarialMatrix : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Matrix, AdversarialMatrix, testing::Values(1, 2),
                         [](const auto& info) { return "experts_" + std::to_string(info.param); });

TEST_P(AdversarialMatrix, GivesTheNumbersOfOneProcess) {
  AdversarialRun run(GetParam());
  const Numbers alone = run("", 1);
  for (const Division& division : kDivisions) expect_the_numbers_of_one_process(run, alone, division);
  const std::vector<std::string> again = {"recompute.mode=full"};
  EXPECT_EQ(run("", 1, again).losses, alone.losses);
  for (const Division& division : kDivisions) expect_the_numbers_of_one_process(run, alone, division, again);
}

TEST(MovingRouter, IsAskedOnceForEachMicroBatchInEveryModeOfRecompute) {
  const SmallRun run({"interval", "[\"moving_router\", \"fused\", \"grouped\", \"aten\"]"},
                     "plugin = \"mixtral\"\nconfig = { vocab_size = 101, hidden_size = 32, intermediate_size = 56, "
                     "num_hidden_layers = 3, num_attention_heads = 4, num_key_value_heads = 2, initializer_range = "
                     "0.1, num_local_experts = 5, num_experts_per_tok = 2 }");
  run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
  const std::vector<std::string> overrides = {"plugins.path=" CHASSIS_TEST_STUB_DIR, "train.micro_batch_size=2",
                                              "train.global_batch_size=4"};
  const Trained kept = train(run, 3, overrides, Recompute::kNone);
  for (const Recompute& recompute : {Recompute::kFull, Recompute::kSelective, Recompute{1, 1}})
    expect_same_bits(train(run, 3, overrides, recompute), kept);
}

}  // namespace
}  // namespace chassis::test
