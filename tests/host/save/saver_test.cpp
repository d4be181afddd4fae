// Saves, exports and loads of a run through one Saver.
#include "host/save/saver.hpp"

#include "host/base/log.hpp"
#include "host/save/weights.hpp"
#include "tests/regress/small_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

class SaverTest : public testing::Test {
 protected:
  SaverTest() : run_({"naive", "[\"reference\"]"}) { open(); }

  void open(const std::vector<std::string>& overrides = {}) {
    saver_.reset();
    session_ = run_.open(overrides);
    saver_ = std::make_unique<Saver>(*session_, directory());
  }

  void fill(double value) {
    for (const auto& p : session_->parameters().all()) p->stored().fill(value);
  }
  void expect_filled_with(float value) {
    for (const auto& p : session_->parameters().all())
      for (float x : floats_of(p->stored())) ASSERT_EQ(x, value) << p->name;
  }
  std::string save(int64_t step, const Json& state) {
    saver_->begin(step, state);
    return saver_->finish().path;
  }
  // Steps 1 and 2, filled with their numbers.
  void save_two() {
    for (int step : {1, 2}) {
      fill(step);
      EXPECT_EQ(save(step, {{"at", step}}), checkpoint(step));
    }
    fill(0);
  }
  // Changes a byte of the last tensor of a checkpoint.
  void damage(int step) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint(step))) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-100, std::ios::end);
      file.put('\x55');
    }
  }
  // Changes a byte of a header, so that the file cannot be scanned.
  void damage_header(int step) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint(step))) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary).put('\x7f');
    }
  }
  // Resumes, and returns the log; counted warnings, which are printed only once, are reset before.
  std::string log_of_resume() {
    log::reset_counted_warnings();
    testing::internal::CaptureStderr();
    const auto resumed = saver_->resume();
    log::flush();
    EXPECT_TRUE(resumed);
    if (resumed) resumed_ = resumed->checkpoint;
    return testing::internal::GetCapturedStderr();
  }
  std::string directory() const { return run_.folder() / "run"; }
  std::string checkpoint(int step) const { return directory() + "/checkpoints/" + step_directory_name(step); }

  SmallRun run_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Saver> saver_;
  std::string resumed_;
};

TEST_F(SaverTest, OnePlanServesEverySaveAndExport) {
  save_two();
  for (int step : {1, 2}) {
    fill(step);
    saver_->export_model("export-" + std::to_string(step), step);
  }
  for (int step : {1, 2}) {
    open({"run.resume=" + checkpoint(step)});
    EXPECT_EQ(saver_->resume()->state, (Json{{"at", step}}));
    expect_filled_with(static_cast<float>(step));
    fill(0);
    saver_->start_from(directory() + "/export-" + std::to_string(step));
    expect_filled_with(static_cast<float>(step));
  }
}

TEST_F(SaverTest, ADamagedCheckpointIsPassedOverForThePreviousOne) {
  save_two();
  damage(2);
  log::reset_counted_warnings();
  const std::string said = log_of_resume();
  EXPECT_EQ(resumed_, checkpoint(1));
  EXPECT_EQ(saver_->resume()->state, (Json{{"at", 1}}));
  expect_filled_with(1.0f);
  const std::pair<std::string, uint64_t> counted = {"checkpoint-damaged step-000002", 1};
  EXPECT_EQ(log::counted_warnings(), std::vector{counted});
  for (const char* part :
       {"step-000002' is skipped", "tensor '", ".safetensors'", "its CRC32C is ", "the manifest says "})
    EXPECT_HAS(said, part);
  fill(3);
  EXPECT_EQ(save(2, {{"at", 3}}), checkpoint(2)) << "the damaged one is not in the way";
  EXPECT_EQ(saver_->resume()->state, (Json{{"at", 3}}));
}

TEST_F(SaverTest, ADamagedCheckpointIsRenamedAndNotCountedByKeepLast) {
  open({"checkpoint.keep_last=2"});
  save_two();
  damage(2);
  const std::string said = log_of_resume();
  EXPECT_HAS(said, "step-000002 is kept as step-000002.damaged");
  EXPECT_EQ(std::filesystem::read_symlink(directory() + "/checkpoints/latest"), "step-000001");
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2) + ".damaged/manifest.json"));
  save(2, {{"at", 2}});
  EXPECT_TRUE(std::filesystem::exists(checkpoint(1) + "/manifest.json")) << "two whole ones are kept";
  damage(2);
  log_of_resume();
  EXPECT_EQ(resumed_, checkpoint(1));
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2) + ".damaged-2/manifest.json"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2) + ".damaged/manifest.json"));
}

TEST_F(SaverTest, AStepWithoutAManifestIsPassedOverAndKept) {
  save_two();
  std::filesystem::remove(checkpoint(2) + "/manifest.json");
  const std::string said = log_of_resume();
  EXPECT_EQ(resumed_, checkpoint(1));
  EXPECT_HAS(said, "step-000002': it has no manifest.json; next is 'step-000001'");
  EXPECT_HAS(said, "kept as step-000002.damaged");
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2) + ".damaged/sharded"));
}

TEST_F(SaverTest, AMissingCheckpointThatLatestNamesIsReportedBeforeAnOlderOneIsUsed) {
  save_two();
  std::filesystem::remove_all(checkpoint(2));
  const std::string said = log_of_resume();
  EXPECT_EQ(resumed_, checkpoint(1));
  EXPECT_HAS(said, "step-000002': 'latest' names it, but it does not exist; next is 'step-000001'");
  std::filesystem::remove_all(checkpoint(1));
  EXPECT_THROW(saver_->resume(), DamagedCheckpoint) << "nothing is started anew";
}

TEST_F(SaverTest, ACheckpointMovedToAnotherDiskIsReadThroughItsLinkAndNeverDeleted) {
  open({"checkpoint.keep_last=1"});
  save_two();
  const std::string elsewhere = run_.folder() / "disk/step-000002";
  std::filesystem::create_directories(run_.folder() / "disk");
  std::filesystem::rename(checkpoint(2), elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, checkpoint(2));
  log_of_resume();
  EXPECT_EQ(resumed_, checkpoint(2));
  expect_filled_with(2.0f);
  save(3, {{"at", 3}});
  EXPECT_TRUE(std::filesystem::exists(elsewhere + "/manifest.json"));
  EXPECT_TRUE(std::filesystem::is_symlink(checkpoint(2)));
}

// The checkpoint may be whole: the file server, not the disk, may have failed.
TEST_F(SaverTest, ACheckpointThatCannotBeReadStopsTheRunEvenIfAnOlderOneIsWhole) {
  save_two();
  std::filesystem::rename(checkpoint(2), run_.folder() / "away");
  std::filesystem::create_directory_symlink("/nowhere/at/all", checkpoint(2));
  const auto refusal = [&]() -> std::string {
    try {
      saver_->resume();
    } catch (const DamagedCheckpoint& error) {
      return std::string("taken for damage: ") + error.what();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kStorage);
      return error.what();
    }
    return "";
  };
  EXPECT_HAS(refusal(), "step-000002' cannot be read: it is a link to '/nowhere/at/all', which does not exist");
  std::filesystem::remove(checkpoint(2));
  std::filesystem::create_directory_symlink("step-000002", checkpoint(2));
  EXPECT_HAS(refusal(), "step-000002' cannot be read: ");
  EXPECT_HAS(refusal(), "it may be intact, so no older one is used in its place");
  EXPECT_TRUE(std::filesystem::is_symlink(checkpoint(2))) << "nothing is renamed";
}

TEST_F(SaverTest, LoadingWeightsFallsBackAsARunDoesButChangesNothing) {
  save_two();
  damage_header(2);
  log::reset_counted_warnings();
  testing::internal::CaptureStderr();
  load_weights(*session_, "");
  log::flush();
  const std::string said = testing::internal::GetCapturedStderr();
  expect_filled_with(1.0f);
  EXPECT_HAS(said, "step-000002' is skipped: ");
  EXPECT_HAS(said, "from " + checkpoint(1) + ": ");
  EXPECT_TRUE(std::filesystem::exists(checkpoint(2) + "/manifest.json"));
  damage_header(1);
  EXPECT_THROW(load_weights(*session_, ""), DamagedCheckpoint);
}

TEST_F(SaverTest, ACheckpointThatCannotBeScannedIsPassedOver) {
  save_two();
  damage_header(2);
  log::reset_counted_warnings();
  const std::string said = log_of_resume();
  EXPECT_EQ(resumed_, checkpoint(1));
  expect_filled_with(1.0f);
  EXPECT_EQ(log::counted_warnings().size(), 1u);
  for (const char* part :
       {"step-000002' is skipped", "shard-00001-model-00001-of-00001.safetensors' is damaged in its header",
        "its CRC32C is ", "next is 'step-000001'"})
    EXPECT_HAS(said, part);
}

TEST_F(SaverTest, ADamagedCheckpointThatWasNamedIsAnError) {
  save_two();
  damage(2);
  open({"run.resume=" + checkpoint(2)});
  EXPECT_THROW(saver_->resume(), DamagedCheckpoint);
  damage_header(1);
  open({"run.resume=" + checkpoint(1)});
  EXPECT_THROW(saver_->resume(), DamagedCheckpoint);
}

TEST_F(SaverTest, TrainingDoesNotStartAnewIfAllCheckpointsAreDamaged) {
  save_two();
  damage(1);
  damage_header(2);
  try {
    saver_->resume();
    ADD_FAILURE() << "trains anew";
  } catch (const DamagedCheckpoint& error) {
    EXPECT_HAS(error.what(), "every checkpoint of this run is damaged; to start over, move ");
  }
}

TEST_F(SaverTest, ValuesThatAreNotFiniteAreFoundOnLoadAndAnOlderCheckpointIsNamed) {
  const auto refusal = [&]() -> std::string {
    try {
      saver_->resume();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kNumeric);
      return error.what();
    }
    return "no error";
  };
  fill(1);
  for (OptimizerState& state : session_->optimizer().states()) state.tensor.fill(0.0);
  save(1, {{"at", 1}});
  OptimizerState& spoilt = session_->optimizer().states().at(1);
  spoilt.tensor.fill(NAN);
  save(2, {{"at", 2}});
  const std::string states = refusal();
  EXPECT_HAS(states, "the optimizer's states in " + checkpoint(2) +
                         " are not finite: the first NaN or infinity is in '" + spoilt.descriptor.fqn + "' at [0");
  EXPECT_HAS(states, "run.resume = \"" + checkpoint(1) + "\" continues from an older one");
  spoilt.tensor.fill(0.0);
  fill(INFINITY);
  save(3, {{"at", 3}});
  const std::string parameters = refusal();
  EXPECT_HAS(parameters, "the parameters in " + checkpoint(3) + " are not finite");
  EXPECT_HAS(parameters, "run.resume = \"" + checkpoint(2) + "\" continues from an older one");
}

TEST_F(SaverTest, WithoutACheckpointTrainingStartsAnew) { EXPECT_FALSE(saver_->resume()); }

}  // namespace
}  // namespace chassis::test
