// SIGKILL at any moment of a save: published checkpoints are intact, and a restart finds the newest one and removes
// leftovers.
// CHASSIS_KILLS sets the number of kills at random times.
#include <sys/mman.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <thread>

#include "fixture.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/inspect.hpp"

namespace chassis {
namespace {

using namespace testing;

constexpr const char* kStages[] = {"staged",   "allocated", "streamed", "written",
                                   "manifest", "synced",    "unmarked", "renamed"};

Model model_of_step(int64_t step) {
  Model model;
  for (int i = 0; i < 8; ++i) {
    model.add(Descriptor::plain("layer." + std::to_string(i), Dtype::f32, {64, 1024}), static_cast<uint64_t>(step));
  }
  return model;
}

// The state of the child, read by the parent.
struct Shared {
  volatile int64_t step = 0;
  volatile int stage = -1;  // -1: not saving
  volatile int64_t published = 0;
};
Shared* new_shared() {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return new (memory) Shared;
}

// One run: resumes from the newest checkpoint and saves every step until it is killed. With kill_stage it kills itself
// at that stage, in the save of its second step.
[[noreturn]] void run(const std::string& path, Shared& shared, const char* kill_stage, bool same_name) {
  const BucketPair buckets(1 << 16);
  CheckpointRoot root(path);
  const auto newest = newest_checkpoint(path);
  const int64_t first = newest ? newest->step + 1 : 1;
  for (int64_t step = first;; ++step) {
    const Model model = model_of_step(step);
    SaveRequest request = request_for(model, path, same_name ? "final" : step_directory_name(step), step);
    request.on_stage = [&](const char* stage) {
      shared.stage = shared.stage + 1;
      if (kill_stage != nullptr && step == first + 1 && std::string(stage) == kill_stage) ::kill(::getpid(), SIGKILL);
    };
    shared.step = step;
    shared.stage = 0;
    CheckpointWriter(native(), buckets).save(plan_save(model.save_tensors(), {}, native()), request);
    shared.published = step;
    shared.stage = -1;
    if (!same_name) {
      root.set_latest(request.name);
      if (kill_stage != nullptr && step == first + 1 && std::string(kill_stage) == "latest")
        ::kill(::getpid(), SIGKILL);
      root.prune(2);
    }
  }
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
    const auto loaded = load_all(reader, model.load_tensors(), buckets);
    for (const auto& [fqn, whole] : model.wholes)
      EXPECT_TRUE(same_bytes(loaded.at(fqn), whole)) << info.path << " " << fqn;
  }
  const auto newest = newest_checkpoint(path);
  if (at_least > 0) {
    EXPECT_TRUE(newest.has_value());
  }
  EXPECT_GE(newest ? newest->step : 0, at_least);
  return newest ? newest->step : 0;
}

TEST(Kill, AtEveryStageLeavesWholeCheckpoints) {
  std::vector<const char*> stages(std::begin(kStages), std::end(kStages));
  stages.push_back("latest");
  for (const bool same_name : {false, true}) {
    for (const char* stage : stages) {
      if (same_name && std::string(stage) == "latest") continue;
      const TemporaryDirectory dir;
      Shared* shared = new_shared();
      const pid_t child = ::fork();
      if (child == 0) run(dir.path(), *shared, stage, same_name);
      int status = 0;
      ::waitpid(child, &status, 0);
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << stage;
      const bool is_new = std::string(stage) == "renamed" || std::string(stage) == "latest";
      // A restart resumes from the first step if `latest` still names it.
      const int64_t expected = same_name ? (is_new ? 2 : 1) : std::string(stage) == "latest" ? 2 : 1;
      EXPECT_EQ(check_directory(dir.path(), 1), expected) << stage << (same_name ? ", same name" : "");
    }
  }
}

TEST(Kill, AtRandomMomentsLeavesWholeCheckpoints) {
  const char* setting = std::getenv("CHASSIS_KILLS");
  const int num_kills = setting != nullptr ? std::atoi(setting) : 30;
  const TemporaryDirectory dir;
  Shared* shared = new_shared();
  std::mt19937 random(11);
  int during_save = 0, stages_hit[10] = {};
  int64_t newest = 0;
  for (int i = 0; i < num_kills; ++i) {
    shared->stage = -1;
    const pid_t child = ::fork();
    if (child == 0) run(dir.path(), *shared, nullptr, false);
    // In every other round, waits until the child has saved, however long it took to start.
    const int64_t published = shared->published;
    int status = 0;
    while (i % 2 == 0 && shared->published == published && ::waitpid(child, &status, WNOHANG) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    ASSERT_EQ(status, 0) << "the run ended with status " << status;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the run ended with status " << status;
    if (shared->stage >= 0) ++during_save, ++stages_hit[shared->stage];
    // set_latest comes after the rename, so a restart may see the step before the one that was published last.
    newest = check_directory(dir.path(), shared->published > 0 ? shared->published - 1 : 0);
  }
  std::printf("%d kills, %d of them during a save; by stage:", num_kills, during_save);
  for (const int hits : stages_hit) std::printf(" %d", hits);
  std::printf("; newest step %lld\n", static_cast<long long>(newest));
  EXPECT_GT(newest, 0);
}

}  // namespace
}  // namespace chassis
