// The memory peak of a save and a load is two buckets plus a small allowance, for any size of the model.
// Argument: size of the model in MiB.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "ranks.hpp"

namespace chassis {
namespace {

using namespace testing;

int64_t model_mib = 256;
constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kBucketBytes = 16 * kMib;
constexpr uint64_t kAllowance = 16 * kMib;

uint64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  throw std::runtime_error(key);
}
// Resets the peak of resident memory.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// One large tensor of a third of the model, and many of 8 MiB.
struct BigModel {
  std::vector<Descriptor> descriptors;
  std::map<std::string, Tensor> tensors;

  explicit BigModel(uint64_t num_bytes) {
    const auto add = [&](const std::string& fqn, uint64_t bytes) {
      const auto columns = static_cast<int64_t>(bytes / 4 / 1024);
      descriptors.push_back(Descriptor::plain(fqn, Dtype::f32, {1024, columns}));
      Tensor t = Tensor::empty(std::vector<int64_t>{1024, columns}, Dtype::f32);
      for (int64_t i = 0; i < t.num_elements(); ++i) t.data_as<float>()[i] = static_cast<float>(i % 9973);
      tensors[fqn] = t;
    };
    add("embed", num_bytes / 3 / 4096 * 4096);
    for (uint64_t at = num_bytes / 3; at < num_bytes; at += 8 * kMib)
      add("layer." + std::to_string(at / kMib), 8 * kMib);
  }
  LocalTensors locals() const {
    return [this](const Descriptor& d, int) { return tensors.at(d.fqn); };
  }
};

class Peak : public ::testing::TestWithParam<std::pair<const char*, Dtype>> {};

TEST_P(Peak, IsTwoBucketsPlusAnAllowance) {
  const TemporaryDirectory dir;
  const FormatPlugin& format = std::string(GetParam().first) == "native" ? native() : huggingface();
  const BigModel model(static_cast<uint64_t>(model_mib) * kMib);
  std::vector<SaveTensor> tensors;
  std::vector<LoadTensor> loads;
  for (const Descriptor& d : model.descriptors) {
    tensors.push_back(SaveTensor::plain(d));
    tensors.back().disk_dtype = GetParam().second;
    loads.push_back({d, ""});
  }
  const uint64_t before = status_bytes("VmRSS");
  reset_peak();
  const BucketPair buckets(kBucketBytes);
  SaveRequest request;
  request.parent = dir.path();
  request.name = "c";
  request.tensors = model.locals();
  const SavePlan plan = plan_save(tensors, {}, format);
  const SaveResult result = CheckpointWriter(format, buckets).save(plan, request);
  const uint64_t save_peak = status_bytes("VmHWM") - before;
  reset_peak();
  CheckpointReader reader(dir / "c", format);
  const auto start = std::chrono::steady_clock::now();
  reader.load(loads, {}, buckets, model.locals());
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const uint64_t load_peak = status_bytes("VmHWM") - before;
  std::printf("%s %s, %lld MiB: %s, of which %.2f s sync; save +%.1f MiB, load +%.1f MiB in %.2f s\n", GetParam().first,
              std::string(dtype_name(GetParam().second)).c_str(), static_cast<long long>(model_mib),
              result.line().c_str(), result.sync_seconds, static_cast<double>(save_peak) / kMib,
              static_cast<double>(load_peak) / kMib, load_seconds);
  EXPECT_LE(save_peak, 2 * kBucketBytes + kAllowance);
  EXPECT_LE(load_peak, 2 * kBucketBytes + kAllowance);
}

// A model that is sharded in several ways; each process holds only its shards.
struct ShardedModel {
  static constexpr int kNumRanks = 8;
  MeshShape mesh = MeshShape({{"dp", kNumRanks}});
  std::vector<Descriptor> descriptors;

  explicit ShardedModel(uint64_t num_bytes) {
    const Placement ways[] = {Placement::dim_chunk({"dp"}, 0), Placement::flat_range({"dp"}),
                              Placement::dim_chunk({"dp"}, 1)};
    const auto add = [&](const std::string& fqn, uint64_t bytes) {
      Descriptor d = Descriptor::plain(fqn, Dtype::f32, {1021, static_cast<int64_t>(bytes / 4 / 1021)});
      d.placements = {ways[descriptors.size() % 3]};
      descriptors.push_back(d);
    };
    add("embed", num_bytes / 3);
    for (uint64_t at = num_bytes / 3; at < num_bytes; at += 8 * kMib)
      add("layer." + std::to_string(at / kMib), 8 * kMib);
  }
};

// Runs in a child process. Returns the peaks above the size of its shards, in MiB.
std::pair<double, double> peaks_of_rank(const FormatPlugin& format, int64_t mib, int rank, int port,
                                        const std::string& parent) {
  const ShardedModel model(static_cast<uint64_t>(mib) * kMib);
  World world(test::test_launch(rank, ShardedModel::kNumRanks, port), std::chrono::seconds(60));
  std::map<std::string, Tensor> shards;
  std::vector<SaveTensor> tensors;
  std::vector<LoadTensor> loads;
  for (const Descriptor& d : model.descriptors) {
    const Shape shape = Layout(d, model.mesh).local_shape(rank);
    shards[d.fqn] = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), d.dtype);
    shards[d.fqn].fill(rank);
    tensors.push_back(SaveTensor::plain(d));
    loads.push_back({d, ""});
  }
  SaveRequest request;
  request.parent = parent;
  request.name = format.name();
  request.tensors = [&](const Descriptor& d, int) { return shards.at(d.fqn); };
  world.barrier("start");
  const uint64_t before = status_bytes("VmRSS");
  reset_peak();
  const BucketPair buckets(kBucketBytes);
  const SaveResult result =
      CheckpointWriter(format, buckets).save(plan_of_rank(world, tensors, model.mesh, format), request, world);
  const uint64_t save_peak = status_bytes("VmHWM") - before;
  reset_peak();
  LoadOptions options;
  options.rank = rank;
  CheckpointReader(result.path, format).load(loads, model.mesh, buckets, request.tensors, options);
  const uint64_t load_peak = status_bytes("VmHWM") - before;
  if (rank == 0)
    std::printf("%s, %d ranks, %lld MiB: %s\n", format.name().c_str(), ShardedModel::kNumRanks,
                static_cast<long long>(mib), result.line().c_str());
  return {static_cast<double>(save_peak) / kMib, static_cast<double>(load_peak) / kMib};
}

void expect_two_buckets_plus_allowance(const FormatPlugin& format, int64_t mib) {
  struct Shared {
    std::atomic<int> port;
    std::pair<double, double> peaks[ShardedModel::kNumRanks];
  };
  const TemporaryDirectory dir;
  auto* shared =
      new (::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared;
  shared->port = 0;
  std::vector<pid_t> ranks;
  std::fflush(nullptr);
  for (int rank = 0; rank < ShardedModel::kNumRanks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      while (shared->port == 0) ::usleep(100);
      shared->peaks[rank] = peaks_of_rank(format, mib, rank, shared->port, dir.path());
      std::fflush(nullptr);
      ::_exit(0);
    }
    ranks.push_back(child);
  }
  StoreServer server("127.0.0.1", 0);
  shared->port = server.port();
  for (const pid_t rank : ranks) {
    int status = 0;
    ::waitpid(rank, &status, 0);
    EXPECT_EQ(status, 0);
  }
  for (int rank = 0; rank < ShardedModel::kNumRanks; ++rank) {
    const auto& [save, load] = shared->peaks[rank];
    std::printf("  rank %d: save +%.1f MiB, load +%.1f MiB\n", rank, save, load);
    EXPECT_LE(save, static_cast<double>(2 * kBucketBytes + kAllowance) / kMib);
    EXPECT_LE(load, static_cast<double>(2 * kBucketBytes + kAllowance) / kMib);
  }
}

// For three sizes of the model. No test that starts threads may run before it, since ranks are forked.
TEST(PeakOfARank, IsTwoBucketsPlusAnAllowance) {
  for (const FormatPlugin* format : {&native(), &huggingface()})
    for (const int64_t mib : {model_mib / 4, model_mib / 2, model_mib}) expect_two_buckets_plus_allowance(*format, mib);
}

INSTANTIATE_TEST_SUITE_P(Save, Peak,
                         ::testing::Values(std::pair("native", Dtype::f32), std::pair("safetensors", Dtype::f32),
                                           std::pair("safetensors", Dtype::bf16)));

}  // namespace
}  // namespace chassis

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) chassis::model_mib = std::atoll(argv[1]);
  return RUN_ALL_TESTS();
}
