// Reward models that were trained under tensor parallelism are saved whole: the shapes of their tensors and optimizer
// states are those of config.json, for vocabularies that the ranks cannot divide too. Another trainer lost a reward
// model of 70 billion parameters here: it saved each rank's share of the embeddings as if it were all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "tests/regress/objective_run.hpp"
#include "tests/regress/weights_file.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

constexpr double kTolerance = 2e-6;
const std::vector<std::string> kTensor = {"plugin = \"tensor\""};

struct Divided {
  int ranks;
  int64_t vocab_size;
  std::string name() const { return "tp_" + std::to_string(ranks) + "_vocab_" + std::to_string(vocab_size); }
  friend void PrintTo(const Divided& divided, std::ostream* out) { *out << divided.name(); }
};

// The tokenizer has a word for each id after its bytes and special tokens.
constexpr int64_t kFirstWord = 261;
std::string word(int64_t number) {
  if (number < 2) return number == 0 ? "assistant" : "user";
  std::string letters = "x";
  for (; number > 0; number /= 25) letters += static_cast<char>('a' + number % 25);
  return letters;
}

// The shapes that transformers gives to the tensors of a LlamaForSequenceClassification.
std::map<std::string, std::vector<int64_t>> shapes_of(const Json& config) {
  const int64_t hidden = config.at("hidden_size"), inner = config.at("intermediate_size"),
                head_dim = config.at("head_dim"), queries = config.at("num_attention_heads").get<int64_t>() * head_dim,
                keys = config.at("num_key_value_heads").get<int64_t>() * head_dim;
  std::map<std::string, std::vector<int64_t>> shapes = {
      {"model.embed_tokens.weight", {config.at("vocab_size"), hidden}},
      {"model.norm.weight", {hidden}},
      {"score.weight", {config.at("num_labels"), hidden}}};
  for (int64_t layer = 0; layer < config.at("num_hidden_layers"); ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const auto add_linear = [&](const std::string& name, int64_t out, int64_t in, bool has_bias) {
      shapes[prefix + name + ".weight"] = {out, in};
      if (has_bias) shapes[prefix + name + ".bias"] = {out};
    };
    add_linear("self_attn.q_proj", queries, hidden, true);
    add_linear("self_attn.k_proj", keys, hidden, true);
    add_linear("self_attn.v_proj", keys, hidden, true);
    add_linear("self_attn.o_proj", hidden, queries, true);
    add_linear("mlp.gate_proj", inner, hidden, false);
    add_linear("mlp.up_proj", inner, hidden, false);
    add_linear("mlp.down_proj", hidden, inner, false);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      shapes[prefix + norm + ".weight"] = {hidden};
  }
  return shapes;
}

// A part of a tensor in a checkpoint.
struct Part {
  std::vector<int64_t> begin, end;

  int64_t num_elements() const {
    int64_t count = 1;
    for (size_t dim = 0; dim < begin.size(); ++dim) count *= end[dim] - begin[dim];
    return count;
  }
  bool overlaps(const Part& other) const {
    for (size_t dim = 0; dim < begin.size(); ++dim)
      if (end[dim] <= other.begin[dim] || other.end[dim] <= begin[dim]) return false;
    return true;
  }
};
struct Saved {
  std::vector<int64_t> shape;
  std::vector<Part> parts;
};

std::map<std::string, Saved> saved_tensors(const std::string& checkpoint) {
  std::map<std::string, Saved> tensors;
  const Json manifest = Json::parse(text_of_file(checkpoint + "/manifest.json"));
  for (const Json& entry : manifest.at("tensors")) {
    Saved& saved = tensors[entry.at("name")];
    const auto shape = entry.at("shape").get<std::vector<int64_t>>();
    EXPECT_TRUE(saved.parts.empty() || saved.shape == shape) << entry;
    saved.shape = shape;
    if (entry.contains("box"))
      saved.parts.push_back({entry.at("box").at(0), entry.at("box").at(1)});
    else
      saved.parts.push_back({std::vector<int64_t>(shape.size(), 0), shape});
  }
  return tensors;
}

void expect_each_element_once(const std::string& name, const Saved& saved) {
  const Part whole{std::vector<int64_t>(saved.shape.size(), 0), saved.shape};
  int64_t count = 0;
  for (size_t i = 0; i < saved.parts.size(); ++i) {
    count += saved.parts[i].num_elements();
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(saved.parts[i].overlaps(saved.parts[j])) << name;
  }
  EXPECT_EQ(count, whole.num_elements()) << name;
}

void expect_close(const std::string& name, const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size()) << name;
  double largest = 1, difference = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max<double>(largest, std::abs(wanted[i]));
    difference = std::max<double>(difference, std::abs(got[i] - wanted[i]));
  }
  EXPECT_LE(difference / largest, kTolerance) << name;
}

// Eight ranks divide the heads and the inner size.
class RewardSaving : public testing::TestWithParam<Divided> {
 protected:
  RewardSaving() : run_(method("reward")) {
    const int64_t vocab_size = GetParam().vocab_size;
    run_.replace(
        "vocab_size = 264, hidden_size = 48, intermediate_size = 96, num_hidden_layers = 3, num_attention_heads = 6, "
        "num_key_value_heads = 2",
        "vocab_size = " + std::to_string(vocab_size) +
            ", hidden_size = 64, intermediate_size = 88, num_hidden_layers = 2, num_attention_heads = 16, "
            "num_key_value_heads = 8");
    std::string words, rows;
    for (int64_t i = 0; i < vocab_size - kFirstWord; ++i) words += word(i) + "\n";
    write_text(run_.folder() / "tokenizer/words.txt", words);
    std::mt19937 random(3);
    const auto text = [&] {
      std::string line;
      for (int i = 0; i < 8; ++i)
        line += (i > 0 ? " " : "") + word(static_cast<int64_t>(random()) % (vocab_size - kFirstWord));
      return line;
    };
    for (int i = 0; i < 16; ++i)
      rows += nlohmann::json({{"prompt", text() + "é"}, {"chosen", text()}, {"rejected", text()}}).dump() + "\n";
    write_text(run_.folder() / "rows.jsonl", rows);
    write_text(run_.folder() / "answers.jsonl", [&] {
      std::string lines;
      for (int i = 0; i < 5; ++i) lines += nlohmann::json({{"prompt", text()}, {"completion", text()}}).dump() + "\n";
      return lines;
    }());
  }

  std::string directory() const { return run_.folder() / "run"; }
  // Trains to this step; continues what is there. Returns the output.
  std::string train_on(int ranks, int step) {
    std::vector<std::string> overrides = {"train.seq_len=128", "train.global_batch_size=4", "train.micro_batch_size=2",
                                          "run.max_steps=" + std::to_string(step)};
    if (ranks > 1) overrides.push_back("mesh.tp=" + std::to_string(ranks));
    return run_.train(ranks > 1 ? kTensor : std::vector<std::string>{}, ranks, overrides);
  }
  // The same by one process, in place of the run that is there.
  std::pair<ObjectiveRun::Result, AllWeights> of_one_process(int step) {
    fs::remove_all(directory());
    train_on(1, step);
    return {run_.result(step), exported()};
  }
  AllWeights exported() const { return read_weights(directory() + "/final/model.safetensors"); }

  // Loss and rewards of the last step, tensors of the checkpoint, and the exported model.
  void expect_same_as(const std::pair<ObjectiveRun::Result, AllWeights>& wanted, int step) {
    const ObjectiveRun::Result got = run_.result(step);
    for (const char* number : {"loss", "grad_norm", "accuracy", "margin"}) {
      const double value = wanted.first.steps.back().at(number);
      EXPECT_NEAR(got.steps.back().at(number), value, kTolerance * std::max(1.0, std::abs(value))) << number;
    }
    ASSERT_EQ(got.tensors.size(), wanted.first.tensors.size());
    for (const auto& [name, values] : wanted.first.tensors) expect_close(name, got.tensors.at(name), values);
    const AllWeights weights = exported();
    ASSERT_EQ(weights.size(), wanted.second.size());
    for (const auto& [name, tensor] : wanted.second) expect_close(name, weights.at(name).values, tensor.values);
  }

  std::vector<double> scores(const std::string& config, const std::vector<std::string>& more) {
    fs::remove(run_.folder() / "scores.jsonl");
    std::vector<std::string> command = {CHASSIS_PROGRAM, "score", config};
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"--rows", "answers.jsonl", "--out", "scores.jsonl"});
    const Outcome outcome = run_process(command, run_.folder().path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<double> values;
    std::istringstream lines(text_of_file(run_.folder() / "scores.jsonl"));
    for (std::string line; std::getline(lines, line);) values.push_back(nlohmann::json::parse(line).at("score"));
    return values;
  }

  ObjectiveRun run_;
};

TEST_P(RewardSaving, KeepsTheShapesOfTheModelAndTheNumbersOfOneProcess) {
  const auto& [ranks, vocab_size] = GetParam();
  const auto wanted = of_one_process(2);
  fs::remove_all(directory());
  train_on(ranks, 2);

  const Json config = Json::parse(text_of_file(directory() + "/final/config.json"));
  EXPECT_EQ(config.at("architectures"), Json::array({"LlamaForSequenceClassification"}));
  EXPECT_EQ(config.at("vocab_size"), vocab_size);
  EXPECT_EQ(config.at("num_labels"), 1);
  const auto shapes = shapes_of(config);
  const AllWeights weights = exported();
  EXPECT_EQ(weights.size(), shapes.size());
  auto saved = saved_tensors(directory() + "/checkpoints/step-000002");
  EXPECT_EQ(saved.size(), 3 * shapes.size()) << "each parameter has two moments";
  for (const auto& [name, shape] : shapes) {
    EXPECT_EQ(weights.at(name).shape, shape) << name;
    for (const char* state : {"", ".exp_avg", ".exp_avg_sq"}) {
      EXPECT_EQ(saved.at(name + state).shape, shape) << name << state;
      expect_each_element_once(name + state, saved.at(name + state));
    }
  }
  // The embeddings were divided, and each rank trained its share. (Some rows have bytes above 127, since the first ids
  // are bytes.)
  const std::string moment = "model.embed_tokens.weight.exp_avg_sq";
  EXPECT_EQ(saved.at(moment).parts.size(), static_cast<size_t>(ranks));
  const std::vector<float> values = run_.result(2).tensors.at(moment), whole = wanted.first.tensors.at(moment);
  ASSERT_EQ(values.size(), whole.size());
  const float largest = std::ranges::max(whole);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], whole[i], 1e-5 * largest) << moment << " " << i;
  for (const Part& part : saved.at(moment).parts)
    EXPECT_TRUE(std::any_of(values.begin() + part.begin[0] * 64, values.begin() + part.end[0] * 64,
                            [](float value) { return value > 0; }))
        << "rows " << part.begin[0] << " to " << part.end[0];
  expect_same_as(wanted, 2);
}

TEST_P(RewardSaving, CanBeResumedOnOtherRanks) {
  const int ranks = GetParam().ranks;
  train_on(ranks, 2);
  const std::string half = run_.folder() / "half";
  fs::rename(directory(), half);
  const auto wanted = of_one_process(4);
  for (const int others : {1, ranks / 2}) {
    SCOPED_TRACE(std::to_string(others) + " ranks");
    fs::remove_all(directory());
    fs::copy(half, directory(), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    train_on(others, 4);
    expect_same_as(wanted, 4);
  }
}

TEST_P(RewardSaving, ScoresRowsAsItsExport) {
  const int ranks = GetParam().ranks;
  EXPECT_HAS(train_on(ranks, 2), "next: chassis score run/resolved.toml mesh.tp=1 --rows FILE; ");
  write_text(run_.folder() / "exported.toml",
             "schema_version = 1\n[run]\noutput_dir = \"other\"\nthreads = 1\ndevice = \"cpu\"\n"
             "[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR "\", \"" CHASSIS_TEST_STUB_DIR
             "\"]\n[tokenizer]\nplugin = \"words\"\n[model]\npath = \"run/final\"\n[train]\ntask = \"reward\"\n"
             "seq_len = 128\n[data]\ntemplate = \"chatml\"\n[precision]\ncompute = \"fp32\"\n");
  const std::vector<double> wanted = scores("exported.toml", {});
  ASSERT_EQ(wanted.size(), 5u);
  EXPECT_GT(std::ranges::max(wanted) - std::ranges::min(wanted), 1e-3);
  const std::vector<double> own =
      scores("run.toml", {"train.seq_len=128", "mesh.tp=" + std::to_string(ranks), "--nproc", std::to_string(ranks)});
  ASSERT_EQ(own.size(), wanted.size());
  for (size_t i = 0; i < own.size(); ++i)
    EXPECT_NEAR(own[i], wanted[i], kTolerance * std::max(1.0, std::abs(wanted[i])));
}

std::string name_of(const testing::TestParamInfo<Divided>& divided) { return divided.param.name(); }
INSTANTIATE_TEST_SUITE_P(Small, RewardSaving, testing::Values(Divided{4, 1031}), name_of);
INSTANTIATE_TEST_SUITE_P(Large, RewardSaving, testing::Values(Divided{8, 1031}, Divided{8, 128256}), name_of);

}  // namespace
}  // namespace chassis::test
