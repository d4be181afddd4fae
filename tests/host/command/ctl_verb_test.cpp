// `chassis ctl` as a process, with a run that this test plays.
#include <gtest/gtest.h>

#include <functional>

#include "tests/host/control/control_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using Words = std::vector<std::string>;

class CtlVerb : public test::ControlRun {
 protected:
  // Standard output and error of `chassis ctl RUN words`, while `plays` is the run.
  test::Outcome ctl(
      const Words& words, const std::function<void()>& plays = [] {}) {
    Words command = {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "ctl", run()};
    command.insert(command.end(), words.begin(), words.end());
    std::thread thread(plays);
    const test::Outcome outcome = test::run_process(command, scratch_.path());
    thread.join();
    return outcome;
  }
};

TEST_F(CtlVerb, ShowsTheStatus) {
  start(3);
  server_->set_status({{"step", 120},
                       {"computes", {{"attention", "sdpa"}, {"norm", "fused"}}},
                       {"probation", {{"until_step", 140}}},
                       {"note", "x\x1b[2J"}});
  test::Outcome shown = ctl({"status"});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_EQ(shown.output,
            "generation 3, step 120\n"
            "  attention  sdpa\n"
            "  norm       fused\n"
            "the last swap is in probation: until_step 140\n"
            "note: x\\x1b[2J\n");
  shown = ctl({"status", "--json"});
  EXPECT_TRUE(shown.output.starts_with(R"({"schema":"chassis.ctl/1","control":1,"reply":"end")")) << shown.output;
  EXPECT_EQ(parse_json(shown.output, "output")["facts"]["step"], 120);
}

TEST_F(CtlVerb, PrintsThePhasesOfASwapAndItsEnd) {
  start(3);
  test::write_text(scratch_ / "new.toml", "[train]\n");
  const auto plays = [&] {
    const ControlRequest request = taken();
    EXPECT_EQ(request.set, Words{"attention.plugin=sdpa"});
    EXPECT_EQ(request.plugins, Words{"adamw@2.0.0"});
    EXPECT_EQ(request.file, "[train]\n");
    EXPECT_EQ(request.file_name, scratch_ / "new.toml");
    EXPECT_EQ(request.generation, 3);
    server_->phase("create", {{"ranks", 2}});
    server_->set_generation(4);
    server_->finish(true, "committed", "attention is computed by sdpa", {{"pause_ms", 12}});
  };
  const test::Outcome swap = ctl(
      {"swap", "attention.plugin=sdpa", "--plugin", "adamw@2.0.0", "--file", "new.toml", "--generation", "3"}, plays);
  EXPECT_EQ(swap.exit_code, 0) << swap.output;
  EXPECT_HAS(swap.output, " ms  accepted as '");
  EXPECT_HAS(swap.output, " ms  create  ranks 2\n");
  EXPECT_HAS(swap.output, " ms  committed: attention is computed by sdpa; pause_ms 12 (generation 4)\n");
}

TEST_F(CtlVerb, HasAnExitCodeForEveryOutcome) {
  start(3);
  const auto ends = [&](const std::string& outcome) {
    return [this, outcome] {
      taken();
      server_->finish(false, outcome, "because");
    };
  };
  EXPECT_EQ(ctl({"swap", "a=b"}, ends("refused")).exit_code, 2);
  EXPECT_EQ(ctl({"swap", "a=b"}, ends("rolled back")).exit_code, 8);
  EXPECT_EQ(ctl({"rollback"}, ends("rolled back")).exit_code, 0);
  EXPECT_EQ(ctl({"cancel"}).exit_code, 2);
  const test::Outcome stale = ctl({"commit", "--generation", "2"});
  EXPECT_EQ(stale.exit_code, 2);
  EXPECT_HAS(stale.output, "refused: the run has generation 3, and the request expects 2");
  const test::Outcome ended = ctl({"swap", "a=b"}, [&] {
    taken();
    server_.reset();
  });
  EXPECT_EQ(ended.exit_code, 5);
  EXPECT_HAS(ended.output, "run ended: the run ended before the request did");
}

TEST_F(CtlVerb, RefusesWhatItCannotAsk) {
  test::Outcome refused = ctl({"status"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_HAS(refused.output, "no run is training in '" + run() + "'");
  refused = ctl({"swap"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_HAS(refused.output, "'swap' has nothing to change");
  EXPECT_HAS(ctl({"commit", "a=b"}).output, "'commit' takes no changes");
  EXPECT_HAS(ctl({"swap", "attention"}).output, "'attention' is not of the form KEY=VALUE");
  EXPECT_HAS(ctl({"swap", "--file", "x.yaml"}).output, "YAML");
  EXPECT_HAS(ctl({"pause"}).output, "pause");
  EXPECT_EQ(ctl({"pause"}).exit_code, 2);
  EXPECT_EQ(ctl({"status", "--generation", "-1"}).exit_code, 2);
}

}  // namespace
}  // namespace chassis
