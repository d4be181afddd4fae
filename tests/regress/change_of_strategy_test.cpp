// Every strategy resumes the checkpoints of every other one, on more or fewer ranks: parameters, optimizer states and
// the export stay the same bit for bit. With the same strategy and ranks, training ends with the same bits as a run
// that was not stopped.
#include <algorithm>

#include "tests/regress/started_run.hpp"
#include "tests/regress/whole_tensors.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

const std::vector<Sharding> kShardings = {
    {"alone", 1, ""},
    {"fsdp2", 3, "[[parallel]]\nplugin = \"fsdp2\"\n"},
    {"zero3", 2, "[[parallel]]\nplugin = \"zero\"\nstage = 3\n"},
    {"ddp", 2, "[[parallel]]\nplugin = \"ddp\"\n"},
    {"hsdp", 4, "[mesh]\ndp_replicate = 2\ndp_shard = 2\n[[parallel]]\nplugin = \"fsdp2\"\n"},
    {"zero1", 3, "[[parallel]]\nplugin = \"zero\"\nstage = 1\n"},
    {"zero2", 2, "[[parallel]]\nplugin = \"zero\"\nstage = 2\n"},
    {"tensor", 2, "[[parallel]]\nplugin = \"tensor\"\n"},
    {"context_fsdp2", 4, "[mesh]\ncp = 2\n[[parallel]]\nplugin = \"context\"\n[[parallel]]\nplugin = \"fsdp2\"\n"},
    {"pipeline", 2, "[[parallel]]\nplugin = \"pipeline\"\nschedule = \"zbv\"\n"},
    {"tensor_fsdp2", 4, "[mesh]\ntp = 2\n[[parallel]]\nplugin = \"tensor\"\n[[parallel]]\nplugin = \"fsdp2\"\n"},
};

class ShardedRun : public testing::Test, protected StartedRun {
 protected:
  ShardedRun() : StartedRun({"run.threads=1", "train.micro_batch_size=1", "train.global_batch_size=12"}) {}

  // The bytes of every tensor of a checkpoint, by name.
  std::map<std::string, std::string> tensors(const std::string& path) {
    std::map<std::string, std::string> out;
    for (const auto& [name, tensor] : whole_tensors(path, plugins_))
      out[name].assign(tensor.data_as<char>(), tensor.num_bytes());
    return out;
  }

  void expect_same_state(const std::string& ours, const std::string& theirs) {
    const auto a = tensors(ours), b = tensors(theirs);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_GE(std::count_if(b.begin(), b.end(), [](const auto& t) { return t.first.ends_with(".exp_avg"); }), 20);
    for (const auto& [name, bytes] : b) EXPECT_TRUE(a.at(name) == bytes) << name << " of " << ours;
  }
  void expect_same_export(const std::string& ours, const std::string& theirs) const {
    const std::string bytes = text_of_file(directory(theirs) + "/final/model.safetensors");
    EXPECT_GT(bytes.size(), 10'000u);
    EXPECT_TRUE(text_of_file(directory(ours) + "/final/model.safetensors") == bytes) << ours;
  }

  LoadedPlugins plugins_;
};

// Changes from one sharding to those at these distances after it in the list.
struct Change {
  size_t from;
  std::vector<size_t> distances;
  friend void PrintTo(const Change& change, std::ostream* out) { *out << kShardings[change.from].name; }
};
std::vector<Change> changes(const std::vector<size_t>& distances) {
  std::vector<Change> out;
  for (size_t from = 0; from < kShardings.size(); ++from) out.push_back({from, distances});
  return out;
}

class ChangeOfStrategy : public ShardedRun, public testing::WithParamInterface<Change> {};

TEST_P(ChangeOfStrategy, KeepsEveryBit) {
  const Sharding& from = kShardings[GetParam().from];
  train("short", {"run.max_steps=3"}, from);
  for (const size_t distance : GetParam().distances) {
    const Sharding& to = kShardings[(GetParam().from + distance) % kShardings.size()];
    SCOPED_TRACE(std::string(from.name) + " on " + std::to_string(from.ranks) + " → " + to.name + " on " +
                 std::to_string(to.ranks));
    // No step is left to train: the state is only loaded, saved and exported.
    train(to.name, {"run.max_steps=3", "run.resume=" + checkpoint("short", 3)}, to);
    expect_same_state(checkpoint(to.name, 3), checkpoint("short", 3));
    expect_same_export(to.name, "short");
  }
}

INSTANTIATE_TEST_SUITE_P(Neighbours, ChangeOfStrategy, testing::ValuesIn(changes({1, 2})),
                         [](const auto& info) { return kShardings[info.param.from].name; });
INSTANTIATE_TEST_SUITE_P(Others, ChangeOfStrategy, testing::ValuesIn(changes({3, 4, 5, 6, 7, 8, 9, 10})),
                         [](const auto& info) { return kShardings[info.param.from].name; });

class ChangeOfSize : public ShardedRun, public testing::WithParamInterface<size_t> {};

// From 2 ranks to 4, then to 2, then to 1.
TEST_P(ChangeOfSize, KeepsEveryBit) {
  Sharding sharding = kShardings[GetParam()];
  sharding.ranks = 2;
  train("on2", {"run.max_steps=3"}, sharding);
  std::string from = "on2";
  for (const int ranks : {4, 2, 1}) {
    sharding.ranks = ranks;
    const std::string to = from + "to" + std::to_string(ranks);
    train(to, {"run.max_steps=3", "run.resume=" + checkpoint(from, 3)}, sharding);
    expect_same_state(checkpoint(to, 3), checkpoint("on2", 3));
    expect_same_export(to, "on2");
    from = to;
  }
}

INSTANTIATE_TEST_SUITE_P(, ChangeOfSize, testing::Values(1, 2, 3, 5, 6),
                         [](const auto& info) { return kShardings[info.param].name; });

class SameStrategy : public ShardedRun, public testing::WithParamInterface<size_t> {};

TEST_P(SameStrategy, ResumesAsIfItHadNeverStopped) {
  const Sharding& sharding = kShardings[GetParam()];
  train("whole", {"run.max_steps=5", "checkpoint.every_steps=3"}, sharding);
  train("resumed", {"run.max_steps=5", "run.resume=" + checkpoint("whole", 3)}, sharding);
  expect_same_state(checkpoint("resumed", 5), checkpoint("whole", 5));
  expect_same_export("resumed", "whole");
}

INSTANTIATE_TEST_SUITE_P(, SameStrategy, testing::Range(size_t{1}, kShardings.size()),
                         [](const auto& info) { return kShardings[info.param].name; });

struct Damage {
  size_t sharding;
  int ranks_before, ranks_after;
  bool of_header = false;
  friend void PrintTo(const Damage& damage, std::ostream* out) {
    *out << kShardings[damage.sharding].name << " " << damage.ranks_before << " to " << damage.ranks_after;
  }
};

class DamagedShard : public ShardedRun, public testing::WithParamInterface<Damage> {};

// One rank reads the damaged bytes, or several read parts of the damaged tensor and none can tell alone; all ranks go
// back to the previous checkpoint.
TEST_P(DamagedShard, IsPassedOverByAllRanks) {
  Sharding sharding = kShardings[GetParam().sharding];
  sharding.ranks = GetParam().ranks_before;
  train("run", {"run.max_steps=4", "checkpoint.every_steps=2"}, sharding);
  std::string damaged;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint("run", 4)))
    if (entry.path().extension() == ".safetensors") damaged = std::max(damaged, entry.path().string());
  {
    const std::streamoff at = GetParam().of_header ? 100 : static_cast<std::streamoff>(fs::file_size(damaged)) - 1;
    std::fstream file(damaged, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char was = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(was ^ 1));
  }
  sharding.ranks = GetParam().ranks_after;
  train("run", {"run.max_steps=2"}, sharding);
  const std::string log = text_of_file(directory("run") + "/log.txt");
  EXPECT_NE(log.find("step-000004' is skipped: "), std::string::npos) << log;
  const std::string named = GetParam().of_header
                                ? fs::path(damaged).filename().string() + "' is damaged in its header: "
                                : "' is damaged: its CRC32C is ";
  EXPECT_NE(log.find(named), std::string::npos) << log;
  EXPECT_NE(log.find("; next is 'step-000002'"), std::string::npos) << log;
  EXPECT_NE(log.find("resumed from " + checkpoint("run", 2) + " at step 2"), std::string::npos) << log;
  EXPECT_NE(log.find("read " + checkpoint("run", 2) + ": "), std::string::npos) << log;
  EXPECT_NE(log.find(", all of it compared with its checksums"), std::string::npos) << log;
  const Outcome exported =
      ckpt({"export", checkpoint("run", 2), directory("before") + "/final", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
  ASSERT_EQ(exported.exit_code, 0) << exported.output;
  expect_same_export("run", "before");
}

INSTANTIATE_TEST_SUITE_P(, DamagedShard,
                         testing::Values(Damage{1, 2, 4}, Damage{1, 4, 2}, Damage{1, 2, 1}, Damage{1, 3, 3},
                                         Damage{2, 2, 4}, Damage{2, 4, 2}, Damage{2, 2, 1}, Damage{3, 2, 2},
                                         Damage{1, 2, 4, true}, Damage{2, 2, 2, true}),
                         [](const auto& info) {
                           return std::string(kShardings[info.param.sharding].name) + "On" +
                                  std::to_string(info.param.ranks_before) + "Then" +
                                  std::to_string(info.param.ranks_after) + (info.param.of_header ? "Header" : "");
                         });

}  // namespace
}  // namespace chassis::test
