// A run on several processes gives the numbers of one process under every strategy: losses, gradient norms, weights,
// evaluation. The default rows combine every pair of variants (tied embeddings, accumulation, recompute, frozen
// parameters, uneven dims, bf16); the label slow adds each variant alone for every strategy and number of ranks.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <array>
#include <sstream>

#include "host/save/weights.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

struct Strategy {
  const char* name;
  std::vector<std::string> toml;
  std::vector<std::string> (*mesh)(int ranks);
};

std::vector<std::string> default_mesh(int) { return {}; }
std::vector<std::string> replicas(int ranks) {
  return {"mesh.dp_replicate=" + std::to_string(ranks == 4 ? 2 : ranks), "mesh.dp_shard=-1"};
}

const std::vector<Strategy> kStrategies = {
    {"ddp", {"plugin = \"ddp\""}, default_mesh},
    {"fsdp2", {"plugin = \"fsdp2\"", "forward_prefetch = 1", "backward_prefetch = 1"}, default_mesh},
    {"hsdp", {"plugin = \"fsdp2\""}, replicas},
    {"zero1", {"plugin = \"zero\"", "stage = 1"}, default_mesh},
    {"zero2", {"plugin = \"zero\"", "stage = 2", "reduce_bucket_size = 2000"}, default_mesh},
    {"zero3",
     {"plugin = \"zero\"", "stage3_param_persistence_threshold = 40", "overlap_comm = \"true\"",
      "stage3_max_reuse_distance = 5000"},
     default_mesh},
    {"fsdp2_offload", {"plugin = \"fsdp2\"", "offload = \"cpu\"", "reduce_every_microbatch = false"}, default_mesh},
    {"zero3_offload",
     {"plugin = \"zero\"", "offload_optimizer_device = \"cpu\"", "offload_param_device = \"cpu\"",
      "offload_optimizer_fraction = 0.5"},
     default_mesh},
};

struct Variant {
  bool large, tied, accumulates, recomputes, frozen, uneven, bf16;

  static Variant of_bits(unsigned bits) {
    const auto bit = [&](unsigned i) { return ((bits >> i) & 1u) != 0; };
    return {bit(6), bit(5), bit(4), bit(3), bit(2), bit(1), bit(0)};
  }
  std::string name() const {
    std::string text;
    const auto add = [&](bool on, const char* word) {
      text += on ? (text.empty() ? "" : "_") + std::string(word) : "";
    };
    add(large, "large"), add(tied, "tied"), add(accumulates, "accumulation"), add(recomputes, "recompute"),
        add(frozen, "frozen");
    add(uneven, "uneven"), add(bf16, "bf16");
    return text.empty() ? "plain" : text;
  }
};

struct Row {
  size_t strategy;
  int ranks;
  unsigned variant;
  std::string name() const {
    return std::string(kStrategies[strategy].name) + "_on_" + std::to_string(ranks) + "_" +
           Variant::of_bits(variant).name();
  }
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name(); }
};

// Every strategy on 2, 3 and 4 ranks. Each variant is on in some rows and off in others, for every strategy, every
// number of ranks and both states of every other variant.
constexpr std::array<unsigned, 24> kVariants = {0b010111, 0b101010, 0b100100, 0b000011, 0b100010, 0b011101,
                                                0b100000, 0b110111, 0b001000, 0b001000, 0b111100, 0b010011,
                                                0b001101, 0b100001, 0b110110, 0b101110, 0b111110, 0b000001,
                                                0b101100, 0b010011, 0b100110, 0b110110, 0b110010, 0b001101};

std::vector<Row> pairwise_rows() {
  std::vector<Row> rows;
  for (size_t i = 0; i < kVariants.size(); ++i) rows.push_back({i / 3, static_cast<int>(2 + i % 3), kVariants[i]});
  return rows;
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (size_t s = 0; s < kStrategies.size(); ++s)
    for (int ranks : {2, 3, 4})
      for (unsigned v : {0b000000u, 0b100000u, 0b010000u, 0b001000u, 0b000100u, 0b000010u, 0b000001u})
        rows.push_back({s, ranks, v});
  return rows;
}

// Embeddings of 16 MiB in bf16, which are gathered and reduced in place.
std::vector<Row> large_rows() {
  return {{1, 2, 0b1100000u}, {2, 4, 0b1000000u}, {3, 2, 0b1000001u}, {5, 4, 0b1100000u}};
}

struct Result {
  std::vector<double> losses, grad_norms, evaluations;
  Values weights;
};

class ParallelRun {
 public:
  // `model` is the text of [model]; empty: a Llama with the variant's dims.
  explicit ParallelRun(const Variant& variant, const std::string& model = "") : variant_(variant) {
    std::ostringstream toml;
    const char* dims = variant.large    ? "vocab_size = 174764, hidden_size = 48, intermediate_size = 96"
                       : variant.uneven ? "vocab_size = 101, hidden_size = 36, intermediate_size = 57"
                                        : "vocab_size = 96, hidden_size = 48, intermediate_size = 96";
    toml << "schema_version = 1\n[run]\noutput_dir = \"run\"\nmax_steps = 5\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n"
         << "[plugins]\npath = [\"" << CHASSIS_TEST_PLUGIN_DIR << "\"]\n"
         << "[model]\n";
    if (model.empty())
      toml << "plugin = \"llama\"\nconfig = { " << dims
           << ", num_hidden_layers = 3, num_attention_heads = 6, num_key_value_heads = 2, attention_bias = true, "
           << "initializer_range = 0.1, tie_word_embeddings = " << (variant.tied ? "true" : "false") << " }\n";
    toml << model
         << "[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[[data.eval]]\npath = "
            "\"tokens.jsonl\"\nformat = \"tokens\"\n"
         << "[data]\ncache_dir = \"cache\"\n[train]\nseq_len = 32\nglobal_batch_size = 12\n"
         << "[optimizer]\nplugin = \"adamw\"\nlr = 2e-3\nweight_decay = 0.1\neps = 1e-4\n"
         << "[attention]\nplugin = \"" << (model.empty() ? "sdpa" : "interval")
         << "\"\n[kernels]\nplugins = [\"fused\", \"aten\"]\n"
         << "[precision]\ncompute = \"" << (variant.bf16 ? "bf16" : "fp32") << "\"\n"
         << "[recompute]\nmode = \"" << (variant.recomputes ? "full" : "none") << "\"\n"
         << "[checkpoint]\nbucket_mib = 1\n[export]\ndtype = \"fp32\"\n[comm]\ntimeout_s = 60\n";
    if (variant.frozen) toml << "[freeze]\npatterns = [\"layers\\\\.[02]\\\\..*proj\", \"embed\"]\n";
    toml_ = toml.str();
    write_text(folder_ / "tokens.jsonl",
               token_rows(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 90, 41, 7, 64}, 96)));
  }

  Result operator()(const Strategy* strategy, int ranks, const std::vector<std::string>& overrides = {}) {
    std::string toml = toml_;
    if (strategy) {
      toml += "[[parallel]]\n";
      for (const std::string& line : strategy->toml) toml += line + "\n";
    }
    write_text(folder_ / "run.toml", toml);
    std::filesystem::remove_all(folder_ / "run");
    std::vector<std::string> command = {CHASSIS_PROGRAM, "train", "run.toml"};
    const int micro_batch = variant_.accumulates ? 1 : 12 / ranks;
    command.push_back("train.micro_batch_size=" + std::to_string(micro_batch));
    if (strategy)
      for (const std::string& setting : strategy->mesh(ranks)) command.push_back(setting);
    command.insert(command.end(), overrides.begin(), overrides.end());
    if (ranks > 1) command.insert(command.end(), {"--nproc", std::to_string(ranks)});
    Process process(command, folder_.path());
    const Outcome outcome = process.wait();
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    Result result;
    std::istringstream metrics(text_of_file(folder_ / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("grad_norm")) {
        result.losses.push_back(record.at("loss"));
        result.grad_norms.push_back(record.at("grad_norm"));
      } else {
        result.evaluations.push_back(record.at("eval_loss"));
      }
    }
    Session session(load_config(folder_ / "run.toml",
                                {"run.output_dir=" + (folder_ / "run"), "data.cache_dir=" + (folder_ / "cache")}),
                    {});
    session.allocate();
    load_weights(session, folder_ / "run/final");
    for (const auto& p : session.parameters().all()) result.weights[p->name] = floats_of(p->stored());
    return result;
  }

 private:
  Variant variant_;
  ScratchDirectory folder_;
  std::string toml_;
};

double largest_relative(const std::vector<double>& ours, const std::vector<double>& theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  double difference = 0.0;
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
    difference = std::max(difference, relative(ours[i], theirs[i]));
  return difference;
}

double largest_difference(const Values& ours, const Values& theirs) {
  double difference = 0.0;
  for (const auto& [name, values] : theirs)
    for (size_t i = 0; i < values.size(); ++i)
      difference = std::max(difference, std::abs(static_cast<double>(values[i]) - ours.at(name).at(i)));
  return difference;
}

void expect_the_numbers_of_one_process(const Row& row) {
  const Variant variant = Variant::of_bits(row.variant);
  ParallelRun run(variant);
  const Result alone = run(nullptr, 1);
  ASSERT_EQ(alone.losses.size(), 5u);
  ASSERT_EQ(alone.evaluations.size(), 1u);
  const Result ours = run(&kStrategies[row.strategy], row.ranks);
  // bf16 has 8 significant bits: sums in another order round every value differently.
  const double loss = largest_relative(ours.losses, alone.losses),
               norm = largest_relative(ours.grad_norms, alone.grad_norms);
  const double evaluation = largest_relative(ours.evaluations, alone.evaluations);
  const double weights = largest_difference(ours.weights, alone.weights);
  EXPECT_LE(loss, variant.bf16 ? 2e-3 : 2e-6);
  EXPECT_LE(evaluation, variant.bf16 ? 2e-3 : 2e-6);
  EXPECT_LE(norm, variant.bf16 ? 4e-2 : 1e-5);
  EXPECT_LE(weights, variant.bf16 ? 5e-3 : 2e-6);
  std::printf("| %s | %d | %s | %.1e | %.1e | %.1e | %.1e |\n", kStrategies[row.strategy].name, row.ranks,
              variant.name().c_str(), loss, norm, evaluation, weights);
}

class Parallel : public testing::TestWithParam<Row> {};
TEST_P(Parallel, GivesTheNumbersOfOneProcess) { expect_the_numbers_of_one_process(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Pairwise, Parallel, testing::ValuesIn(pairwise_rows()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Large, Parallel, testing::ValuesIn(large_rows()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Matrix, Parallel, testing::ValuesIn(all_rows()),
                         [](const auto& info) { return info.param.name(); });

class ParallelFamilies : public testing::TestWithParam<SmallFamily> {};
INSTANTIATE_TEST_SUITE_P(, ParallelFamilies, testing::ValuesIn(small_families()),
                         [](const auto& info) { return info.param.name; });
TEST_P(ParallelFamilies, GiveTheNumbersOfOneProcessOnTwoRanks) {
  ParallelRun run(Variant::of_bits(0), GetParam().model);
  const Result alone = run(nullptr, 1);
  for (const size_t strategy : {1, 5}) {  // fsdp2 and zero3
    SCOPED_TRACE(kStrategies[strategy].name);
    const Result ours = run(&kStrategies[strategy], 2);
    const double loss = largest_relative(ours.losses, alone.losses),
                 norm = largest_relative(ours.grad_norms, alone.grad_norms),
                 evaluation = largest_relative(ours.evaluations, alone.evaluations),
                 weights = largest_difference(ours.weights, alone.weights);
    EXPECT_LE(loss, 2e-6);
    EXPECT_LE(norm, 1e-5);
    EXPECT_LE(evaluation, 2e-6);
    EXPECT_LE(weights, 2e-6);
    std::printf("| %s | %s | %.1e | %.1e | %.1e | %.1e |\n", GetParam().name.c_str(), kStrategies[strategy].name, loss,
                norm, evaluation, weights);
  }
}

// Recomputed nodes read the parameters that the strategy gathered for backward.
TEST(SelectiveRecompute, ChangesNoBitOnTwoRanks) {
  const Strategy fsdp2{"fsdp2", {"plugin = \"fsdp2\""}, default_mesh},
      zero3{"zero3", {"plugin = \"zero\"", "stage = 3"}, default_mesh};
  for (const auto& [strategy, variant] : {std::pair(fsdp2, 0b010000u), std::pair(zero3, 0b100001u)}) {
    ParallelRun run(Variant::of_bits(variant));
    const Result kept = run(&strategy, 2), again = run(&strategy, 2, {"recompute.mode=selective"});
    EXPECT_EQ(again.losses, kept.losses) << strategy.name;
    EXPECT_EQ(again.grad_norms, kept.grad_norms) << strategy.name;
    EXPECT_EQ(again.weights, kept.weights) << strategy.name;
  }
}

TEST(ParallelRows, CoverEveryPairOfVariants) {
  for (unsigned a = 0; a < 6; ++a) {
    for (size_t s = 0; s < kStrategies.size(); ++s) {
      std::set<unsigned> values;
      for (const Row& row : pairwise_rows())
        if (row.strategy == s) values.insert((row.variant >> a) & 1u);
      EXPECT_EQ(values.size(), 2u) << kStrategies[s].name << " and variant " << a;
    }
    for (unsigned b = 0; b < a; ++b) {
      std::set<std::pair<unsigned, unsigned>> values;
      for (const Row& row : pairwise_rows()) values.emplace((row.variant >> a) & 1u, (row.variant >> b) & 1u);
      EXPECT_EQ(values.size(), 4u) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace chassis::test
