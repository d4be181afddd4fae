// SIGKILL of one or all ranks at any moment of a save by several ranks: the previous or the new checkpoint is intact.
// CHASSIS_KILLS sets the number of kills at random times.
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <thread>

#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/launch/rank_failure.hpp"
#include "ranks.hpp"

namespace chassis {
namespace {

using namespace testing;

constexpr int kNumRanks = 3;
const MeshShape& mesh() {
  static const MeshShape shape = mesh_of(kNumRanks, 1);
  return shape;
}

Model model_of_step(int64_t step) {
  Model model;
  for (int i = 0; i < 8; ++i) {
    Descriptor d = Descriptor::plain("layer." + std::to_string(i), Dtype::f32, {50, 1024});
    d.placements = {i % 2 == 0 ? Placement::dim_chunk({"dp"}, 0) : Placement::flat_range({"dp"})};
    model.add(d, static_cast<uint64_t>(step));
  }
  return model;
}

// The state of the ranks, read by the parent.
struct Shared {
  std::atomic<int> port = 0;
  std::atomic<int> stage = -1;  // rank 0's stage; -1: not saving
  std::atomic<int64_t> published = 0;
};
Shared* new_shared() {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Shared;
}

struct Failpoint {
  int rank = -1;  // -1: none
  std::string stage;
};

// One rank of a run that saves every step. At a failpoint it kills itself, in the save of its second step.
void run(const std::string& path, Shared& shared, int rank, const Failpoint& failpoint) {
  while (shared.port == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  World world(test::test_launch(rank, kNumRanks, shared.port), std::chrono::seconds(10));
  world.set_deadline(std::chrono::seconds(10));
  const BucketPair buckets(1 << 16);
  std::optional<CheckpointRoot> root;
  if (rank == 0) root.emplace(path);
  world.barrier("root");
  const auto newest = newest_checkpoint(path);
  const int64_t first = newest ? newest->step + 1 : 1;
  for (int64_t step = first;; ++step) {
    const Model model = model_of_step(step);
    SaveRequest request = request_for(model, path, step_directory_name(step), step, mesh());
    request.on_stage = [&](const char* stage) {
      if (rank == 0) ++shared.stage;
      if (failpoint.rank == rank && step == first + 1 && failpoint.stage == stage) ::kill(::getpid(), SIGKILL);
    };
    if (rank == 0) shared.stage = 0;
    CheckpointWriter(native(), buckets)
        .save(plan_of_rank(world, model.save_tensors(), mesh(), native()), request, world);
    if (rank != 0) continue;
    shared.published = step;
    shared.stage = -1;
    root->set_latest(request.name);
    root->prune(2);
  }
}

std::vector<pid_t> start_ranks(const std::string& path, Shared& shared, const Failpoint& failpoint = {}) {
  shared.port = 0;
  shared.stage = -1;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        run(path, shared, rank, failpoint);
      } catch (const std::exception&) {
        ::_exit(5);
      }
    }
    ranks.push_back(child);
  }
  return ranks;
}

// Reports the failure as a launcher does.
void report_killed(StoreServer& server, int rank) {
  const auto store = connect_store("127.0.0.1", server.port(), std::chrono::seconds(10));
  post_failure(*store, {rank, ExitCode::kCommunication, "rank " + std::to_string(rank) + ": killed by signal 9"});
}

// Exit codes; 128 + n for a signal.
std::vector<int> wait_for_all(const std::vector<pid_t>& ranks) {
  std::vector<int> out;
  for (const pid_t rank : ranks) {
    int status = 0;
    ::waitpid(rank, &status, 0);
    out.push_back(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  return out;
}

// Checks the directory as a restart sees it. Returns the newest step.
int64_t check_directory(const std::string& path, int64_t at_least) {
  const BucketPair buckets(1 << 16);
  { CheckpointRoot root(path); }  // removes leftovers
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name[0] != '.' || name == ".lock") << name;
  }
  for (const CheckpointInfo& info : list_checkpoints(path)) {
    EXPECT_EQ(info.defect, "");
    EXPECT_TRUE(verify_checkpoint(info.path, buckets).ok()) << info.path;
    const Model model = model_of_step(info.step);
    CheckpointReader reader(info.path, native());
    for (int rank = 0; rank < kNumRanks; ++rank) {
      const auto loaded = load_all(reader, model.load_tensors(), buckets, mesh(), rank);
      for (const Descriptor& d : model.descriptors)
        EXPECT_TRUE(same_bytes(loaded.at(d.fqn), model.local(d, mesh(), rank))) << info.path << " " << d.fqn;
    }
  }
  const auto newest = newest_checkpoint(path);
  EXPECT_GE(newest ? newest->step : 0, at_least);
  return newest ? newest->step : 0;
}

TEST(KillOfARank, AtEveryStageEndsTheOthersAndLeavesWholeCheckpoints) {
  std::vector<Failpoint> failpoints = {{1, "allocated"}, {1, "streamed"}, {2, "streamed"}};
  for (const char* stage : {"staged", "allocated", "streamed", "written", "manifest", "synced", "unmarked", "renamed"})
    failpoints.push_back({0, stage});
  for (const Failpoint& failpoint : failpoints) {
    SCOPED_TRACE("rank " + std::to_string(failpoint.rank) + " at " + failpoint.stage);
    const TemporaryDirectory dir;
    Shared* shared = new_shared();
    const std::vector<pid_t> ranks = start_ranks(dir.path(), *shared, failpoint);
    StoreServer server("127.0.0.1", 0);
    shared->port = server.port();
    EXPECT_EQ(wait_for_all({ranks[static_cast<size_t>(failpoint.rank)]})[0], 128 + SIGKILL);
    report_killed(server, failpoint.rank);
    for (int rank = 0; rank < kNumRanks; ++rank)
      if (rank != failpoint.rank) {
        EXPECT_EQ(wait_for_all({ranks[static_cast<size_t>(rank)]})[0], 5) << rank;
      }
    // `latest` names the first step even if the second was published.
    EXPECT_EQ(check_directory(dir.path(), 1), 1);
    EXPECT_EQ(fs::exists(dir / "step-000002"), failpoint.stage == "renamed");
  }
}

TEST(KillOfARank, AtRandomMomentsLeavesWholeCheckpoints) {
  const char* setting = std::getenv("CHASSIS_KILLS");
  const int num_kills = setting != nullptr ? std::atoi(setting) : 20;
  const TemporaryDirectory dir;
  Shared* shared = new_shared();
  std::mt19937 random(7);
  int during_save = 0, of_all = 0, stages_hit[10] = {};
  int64_t newest = 0;
  for (int i = 0; i < num_kills; ++i) {
    const std::vector<pid_t> ranks = start_ranks(dir.path(), *shared);
    StoreServer server("127.0.0.1", 0);
    shared->port = server.port();
    // In every other round, waits until the ranks have saved, however long they took to start.
    const int64_t published = shared->published;
    while (i % 2 == 0 ? shared->published == published : shared->stage < 0)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 100'000));
    const int victim = static_cast<int>(random() % (kNumRanks + 1));  // kNumRanks: all of them
    for (int rank = 0; rank < kNumRanks; ++rank)
      if (victim == kNumRanks || victim == rank) ::kill(ranks[static_cast<size_t>(rank)], SIGKILL);
    const int stage = shared->stage;
    if (stage >= 0) ++during_save, ++stages_hit[stage];
    if (victim == kNumRanks) ++of_all;
    if (victim < kNumRanks) {
      // The launcher notices after a while, and notifies the other ranks or kills them.
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      if (i % 2 == 0)
        report_killed(server, victim);
      else
        for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    }
    for (const int end : wait_for_all(ranks)) EXPECT_TRUE(end == 128 + SIGKILL || end == 5) << end;
    newest = check_directory(dir.path(), shared->published > 0 ? shared->published - 1 : 0);
  }
  std::printf("%d kills, %d of all ranks, %d during a save; by stage of rank 0:", num_kills, of_all, during_save);
  for (const int hits : stages_hit) std::printf(" %d", hits);
  std::printf("; newest step %lld\n", static_cast<long long>(newest));
  EXPECT_GT(newest, 0);
}

}  // namespace
}  // namespace chassis
