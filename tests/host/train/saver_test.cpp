// What a run saves, exports and loads through one Saver.
#include "host/train/saver.hpp"

#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

class SaverTest : public testing::Test {
 protected:
  SaverTest() : run_({"naive", "[\"reference\"]"}), session_(run_.open({})) {
    session_->optimizer().allocate(session_->device());
  }

  void fill(double value) {
    for (const auto& p : session_->parameters().all()) p->stored().fill(value);
  }
  void expect_filled_with(float value) {
    for (const auto& p : session_->parameters().all())
      for (float x : floats_of(p->stored())) ASSERT_EQ(x, value) << p->name;
  }
  std::string directory() const { return run_.folder() / "run"; }

  SmallRun run_;
  std::unique_ptr<Session> session_;
};

TEST_F(SaverTest, OnePlanServesEverySaveAndExport) {
  Saver saver(*session_, directory());
  for (int step : {1, 2}) {
    fill(step);
    EXPECT_EQ(saver.save(step, {{"at", step}}).path, directory() + "/checkpoints/" + step_directory_name(step));
    saver.export_model("export-" + std::to_string(step), step);
  }
  for (int step : {1, 2}) {
    fill(0);
    EXPECT_EQ(saver.resume(directory() + "/checkpoints/" + step_directory_name(step)), (Json{{"at", step}}));
    expect_filled_with(static_cast<float>(step));
    fill(0);
    saver.start_from(directory() + "/export-" + std::to_string(step));
    expect_filled_with(static_cast<float>(step));
  }
}

}  // namespace
}  // namespace chassis::test
