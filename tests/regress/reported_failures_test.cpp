// Failures that users of other trainers reported (Axolotl #2548, LLaMA-Factory #7583, ColossalAI #6108), and that must
// not occur here.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "host/checkpoint/bucket.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save_plan.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/state/intersect.hpp"
#include "tests/regress/started_run.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kSettings = {"run.threads=1", "train.micro_batch_size=1"};
const char* const kFsdp2 = "[[parallel]]\nplugin = \"fsdp2\"\n";

// An optimizer state on one rank of eight failed the check of a save after hours. Here it fails before the first step.
TEST(AStateOnOneRankOfEight, IsRefusedBeforeTheFirstStepByNameAndRanks) {
  const StartedRun run(kSettings);
  const Outcome outcome =
      run.start("run", {"optimizer.plugin=lazy", "train.global_batch_size=8", "--plugin-path", CHASSIS_TEST_STUB_DIR},
                {"fsdp2", 8, kFsdp2});
  EXPECT_NE(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find(".exp_avg_sq' f32["), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("is on rank 0, not on ranks 1-7"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("step 1/"), std::string::npos) << outcome.output;
}

// Embeddings with rows padded at run time were saved with the padding, or cut in the wrong place. Here the files hold
// the rows of the model under every sharding.
class PaddedVocabulary : public testing::TestWithParam<std::tuple<int64_t, bool>> {
 protected:
  static constexpr int kRanks = 3;
  LoadedPlugins plugins_;
};

struct Padded {
  std::vector<SaveTensor> tensors;
  std::map<std::string, Tensor> wholes;

  Padded(int64_t vocab_size, bool with_score_head, const std::vector<Placement>& placements, int64_t padded_rows) {
    add("model.embed_tokens.weight", {vocab_size, 4}, placements, padded_rows);
    if (with_score_head)
      add("score.weight", {3, 4}, placements.empty() ? placements : std::vector{Placement::dim_chunk({"dp"}, 0)}, 3);
  }
  void add(const std::string& name, const Shape& shape, const std::vector<Placement>& placements, int64_t padded_rows) {
    for (const char* role : {"", ".exp_avg", ".exp_avg_sq"}) {
      Descriptor d = Descriptor::plain(name + role, Dtype::f32, shape);
      d.padded_shape = {padded_rows, shape[1]};
      d.placements = placements;
      Tensor whole = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), Dtype::f32);
      for (int64_t i = 0; i < whole.num_elements(); ++i)
        whole.data_as<float>()[i] = static_cast<float>(i % 9973) + static_cast<float>(role[0]);
      wholes[d.fqn] = whole;
      tensors.push_back(SaveTensor::plain(d));
    }
  }
  // The part of a rank; padding is NaN, which must not reach any file.
  Tensor local(const Descriptor& d, const MeshShape& mesh, int rank) const {
    const Layout layout(d, mesh);
    const Shape shape = layout.local_shape(rank);
    Tensor out = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), Dtype::f32);
    out.fill(std::nan(""));
    for (const Piece& piece : layout.pieces(rank))
      for_each_run({piece.box, row_major_view(d.global_shape, piece.box), piece.local},
                   [&](int64_t from, int64_t to, int64_t length) {
                     std::copy_n(wholes.at(d.fqn).data_as<float>() + from, length, out.data_as<float>() + to);
                   });
    return out;
  }
  std::string save(const FormatPlugin& format, const MeshShape& mesh, const std::string& parent,
                   const std::string& name) const {
    const BucketPair buckets(1 << 16);
    SaveRequest request;
    request.parent = parent;
    request.name = name;
    request.tensors = [&](const Descriptor& d, int rank) { return local(d, mesh, rank); };
    return CheckpointWriter(format, buckets).save(plan_save(tensors, mesh, format), request).path;
  }
};

TEST_P(PaddedVocabulary, HasItsLogicalRowsOnDisk) {
  const auto& [vocab_size, with_score_head] = GetParam();
  const ScratchDirectory folder;
  const MeshShape alone, three({{"dp", kRanks}});
  const FormatPlugin huggingface(plugins_.create("format", "safetensors")), native(plugins_.create("format", "native"));
  const std::string one =
      Padded(vocab_size, with_score_head, {}, vocab_size).save(huggingface, alone, folder.path(), "one");
  const int64_t rounded = (vocab_size + 511) / 512 * 512;
  const std::vector<std::pair<const char*, Placement>> ways = {{"rows", Placement::dim_chunk({"dp"}, 0)},
                                                               {"flat", Placement::flat_range({"dp"})}};
  for (const auto& [way, placement] : ways) {
    for (const int64_t padded_rows : {vocab_size, rounded}) {
      const Padded sharded(vocab_size, with_score_head, {placement}, padded_rows);
      const std::string path = sharded.save(huggingface, three, folder.path(), way + std::to_string(padded_rows));
      EXPECT_TRUE(text_of_file(path + "/model.safetensors") == text_of_file(one + "/model.safetensors"))
          << way << " " << padded_rows;
      // The resumable checkpoint: its shards make up the logical rows, and nothing else.
      const std::string own =
          sharded.save(native, three, folder.path(), std::string("native-") + way + std::to_string(padded_rows));
      CheckpointReader reader(own, native);
      for (const SaveTensor& tensor : sharded.tensors) {
        const DiskTensor* found = reader.find(tensor.descriptor.fqn);
        ASSERT_NE(found, nullptr) << tensor.descriptor.fqn;
        EXPECT_EQ(found->global_shape, tensor.descriptor.global_shape);
      }
      uint64_t payload = 0;
      for (const SaveTensor& tensor : sharded.tensors)
        payload += 4 * static_cast<uint64_t>(numel(tensor.descriptor.global_shape));
      EXPECT_EQ(reader.manifest()->num_tensors(), static_cast<int64_t>(sharded.tensors.size()));
      uint64_t stored = 0;
      for (const auto& box : reader.manifest()->boxes) stored += box.box.num_bytes();
      EXPECT_EQ(stored, payload);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PaddedVocabulary, testing::Combine(testing::Values(128256, 307), testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "WithScoreHead" : "");
                         });

// Eight GPUs ran out of memory on a model that fits. Here the plan gives the memory of each GPU without using one.
TEST(ThreeBillionParametersOnEightGpus, NeedTenGibEach) {
  const ScratchDirectory folder;
  write_text(folder / "llama3.2-3b.toml", R"(schema_version = 1
[run]
max_steps = 10
device = "cuda"
[model]
plugin = "llama"
init = "random"
config = { vocab_size = 128256, hidden_size = 3072, intermediate_size = 8192, num_hidden_layers = 28, num_attention_heads = 24, num_key_value_heads = 8, head_dim = 128, max_position_embeddings = 131072, rope_theta = 500000.0, tie_word_embeddings = true, dtype = "bfloat16" }
[[data.train]]
path = "tokens.jsonl"
format = "tokens"
[train]
seq_len = 4096
micro_batch_size = 4
[recompute]
mode = "full"
[optimizer]
plugin = "adamw"
lr = 1e-5
[[parallel]]
plugin = "fsdp2"
)");
  const Outcome plan = run_process({CHASSIS_PROGRAM, "plan", folder / "llama3.2-3b.toml", "--world", "8", "--json",
                                    "--plugin-path", CHASSIS_TEST_PLUGIN_DIR},
                                   folder.path());
  ASSERT_EQ(plan.exit_code, 0) << plan.output;
  const auto json = nlohmann::json::parse(plan.output.substr(plan.output.find('{')));
  EXPECT_EQ(json.at("parameters").get<int64_t>(), 3212749824);
  for (const auto& rank : json.at("ranks")) {
    const double gib = static_cast<double>(rank.at("peak").get<uint64_t>()) / (1 << 30);
    std::printf("rank %s: %.2f GiB\n", rank["rank"].dump().c_str(), gib);
    EXPECT_LE(gib, 10.0);
  }
}

// Memory does not grow during a run.
TEST(ActiveMemory, IsTheSameAfterFiftySteps) {
  const StartedRun run(kSettings, {"interval", "[\"fused\", \"aten\"]"});
  run.train("run", {"run.max_steps=50", "train.global_batch_size=4", "checkpoint.every_steps=10"},
            {"fsdp2", 2, kFsdp2});
  std::ifstream file(run.directory("run") + "/metrics.jsonl");
  std::vector<uint64_t> active, peak;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    active.push_back(json.at("active_memory_bytes").get<uint64_t>());
    peak.push_back(json.at("peak_memory_bytes").get<uint64_t>());
  }
  ASSERT_EQ(active.size(), 50u);
  EXPECT_EQ(*std::max_element(active.begin() + 2, active.end()), active[2]);
  EXPECT_EQ(peak.back(), peak[2]);
}

// Every rank read the whole model. Here eight ranks together read it once.
TEST(EightRanks, ReadEveryByteOfAModelOnce) {
  const StartedRun run(kSettings);
  run.train("alone", {"run.max_steps=1"});
  const std::string model = run.directory("alone") + "/final";
  const uint64_t file_bytes = fs::file_size(model + "/model.safetensors");
  std::string toml = text_of_file(run.config_path());
  const size_t config = toml.find("config = {");
  toml.replace(config, toml.find('\n', config) - config, "path = \"" + model + "\"");
  write_text(run.config_path(), toml);
  for (const std::string plugin : {"fsdp2", "zero", "ddp"}) {
    const std::string parallel = "[[parallel]]\nplugin = \"" + plugin + "\"\n";
    run.train(plugin, {"run.max_steps=1", "train.global_batch_size=8"}, {plugin.c_str(), 8, parallel.c_str()});
    std::ifstream file(run.directory(plugin) + "/metrics.jsonl");
    std::string line;
    ASSERT_TRUE(std::getline(file, line));
    const auto read = nlohmann::json::parse(line).at("loaded_bytes").get<uint64_t>();
    EXPECT_LE(read, file_bytes) << plugin;
    EXPECT_GE(read, file_bytes * 9 / 10) << plugin;
  }
}

}  // namespace
}  // namespace chassis::test
