// Requests of operators, from their lines to their ends.
#include "host/control/control_server.hpp"

#include <gtest/gtest.h>

#include <future>

#include "host/base/error.hpp"
#include "tests/host/control/control_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

class ControlServerTest : public test::ControlRun {
 protected:
  // The replies and the end of a request that runs on another thread: "accepted, create, committed".
  struct Asked {
    std::unique_ptr<ControlServer>& server;
    std::future<std::string> replies;
    std::string text() {
      if (replies.wait_for(3s) != std::future_status::ready) server.reset();  // ends the client
      return replies.get();
    }
  };
  Asked asked(ControlVerb verb, const std::string& id) {
    return {server_, std::async(std::launch::async, [this, verb, id] {
              std::string names;
              try {
                ControlClient(run()).ask(request(verb, id), [&](const ControlReply& reply) {
                  if (reply.kind == ControlReply::Kind::kAccepted) names += "accepted";
                  if (reply.kind == ControlReply::Kind::kPhase) names += ", " + reply.name;
                  if (reply.kind == ControlReply::Kind::kEnd) names += ", " + reply.name + (reply.ok ? "" : "!");
                });
              } catch (const Error& error) {
                names += error.message();
              }
              return names;
            })};
  }
};

TEST_F(ControlServerTest, AnswersStatusAtOnceFromWhatTheRunSaidLast) {
  start();
  EXPECT_EQ(status().facts, Json::object());
  server_->set_status({{"step", 120}, {"computes", {{"attention", "sdpa"}}}});
  ControlReply reply = status();
  EXPECT_TRUE(reply.ok);
  EXPECT_EQ(reply.generation, 3);
  EXPECT_EQ(reply.facts["step"], 120);
  EXPECT_EQ(reply.facts["computes"]["attention"], "sdpa");
  EXPECT_FALSE(reply.facts.contains("in_progress"));
  server_->set_status({{"step", 121}});
  server_->set_generation(4);
  reply = status();
  EXPECT_EQ(reply.facts["step"], 121);
  EXPECT_EQ(reply.generation, 4);
  EXPECT_FALSE(server_->take());
}

TEST_F(ControlServerTest, HandsARequestToTheRunAndItsPhasesToTheClient) {
  start();
  Asked swap = asked(ControlVerb::kSwap, "op1");
  const ControlRequest request = taken();
  EXPECT_EQ(request.id, "op1");
  EXPECT_EQ(request.set, std::vector<std::string>{"attention.plugin=sdpa"});
  EXPECT_FALSE(server_->take()) << "a request is handed out once";
  server_->phase("create", {{"rank", 0}});
  const Json in_progress = status().facts["in_progress"];
  EXPECT_EQ(in_progress["id"], "op1");
  EXPECT_EQ(in_progress["verb"], "swap");
  EXPECT_EQ(in_progress["phase"], "create");
  server_->phase("quiesce");
  server_->finish(true, "committed", "done");
  EXPECT_EQ(swap.text(), "accepted, create, quiesce, committed");
  EXPECT_FALSE(status().facts.contains("in_progress"));
  // The next one may come.
  Asked check = asked(ControlVerb::kCheck, "op2");
  EXPECT_EQ(taken().id, "op2");
  server_->finish(false, "refused", "no such plugin");
  EXPECT_EQ(check.text(), "accepted, refused!");
}

TEST_F(ControlServerTest, TimesAndTextsOfTheRunReachTheClient) {
  start();
  test::RawClient client(run());
  ASSERT_TRUE(client.send(control_line(request(ControlVerb::kSwap, "a")) + "\n"));
  EXPECT_EQ(parse_control_reply(client.line()).kind, ControlReply::Kind::kAccepted);
  taken();
  std::this_thread::sleep_for(20ms);
  server_->set_generation(9);
  server_->finish(false, "rolled back", "loss is nan\nat rank 2", {{"step", 7}});
  const ControlReply end = parse_control_reply(client.line());
  EXPECT_GE(end.ms, 20.0);
  EXPECT_LT(end.ms, 3000.0);
  EXPECT_EQ(end.generation, 9);
  EXPECT_EQ(end.text, "loss is nan\nat rank 2");
  EXPECT_EQ(end.facts["step"], 7);
}

TEST_F(ControlServerTest, TheSecondOperatorIsRefusedWithTheFirstOnesIdAndPhase) {
  start();
  Asked first = asked(ControlVerb::kSwap, "first");
  taken();
  server_->phase("migrate");
  for (const auto verb : {ControlVerb::kSwap, ControlVerb::kCheck, ControlVerb::kCommit, ControlVerb::kRollback}) {
    const ControlReply second = ask(verb, "second");
    EXPECT_FALSE(second.ok);
    EXPECT_EQ(second.name, "refused");
    EXPECT_HAS(second.text, "swap 'first' is in progress: phase 'migrate'");
  }
  server_->finish(true, "committed", "");
  EXPECT_EQ(first.text(), "accepted, migrate, committed");
}

TEST_F(ControlServerTest, OfOperatorsAtTheSameTimeOneIsAccepted) {
  start();
  std::vector<Asked> all;
  for (int i = 0; i < 8; ++i) all.push_back(asked(ControlVerb::kSwap, "op" + std::to_string(i)));
  const std::string chosen = taken().id;
  // All others have their answer before the one in progress ends.
  int num_refused = 0;
  for (int i = 0; i < 8; ++i)
    if ("op" + std::to_string(i) != chosen) num_refused += all[static_cast<size_t>(i)].text() == ", refused!";
  EXPECT_EQ(num_refused, 7);
  server_->finish(true, "committed", "");
  EXPECT_EQ(all[static_cast<size_t>(std::stoi(chosen.substr(2)))].text(), "accepted, committed");
}

TEST_F(ControlServerTest, RefusesAnotherGenerationWithBothNumbers) {
  start(5);
  for (const auto verb : {ControlVerb::kSwap, ControlVerb::kCommit, ControlVerb::kCancel}) {
    const ControlReply reply = ask(verb, "a", 4);
    EXPECT_FALSE(reply.ok);
    EXPECT_HAS(reply.text, "the run has generation 5, and the request expects 4");
  }
  EXPECT_FALSE(server_->take());
  Asked same = asked(ControlVerb::kRollback, "b");
  EXPECT_EQ(taken().verb, ControlVerb::kRollback);
  server_->finish(true, "committed", "");
  EXPECT_EQ(same.text(), "accepted, committed");
}

TEST_F(ControlServerTest, ASwapInProbationIsEndedByCommitOrRollback) {
  start();
  Asked swap = asked(ControlVerb::kSwap, "s");
  taken();
  server_->phase(kProbationPhase);
  EXPECT_FALSE(ask(ControlVerb::kSwap, "t").ok);
  Asked rollback = asked(ControlVerb::kRollback, "r");
  EXPECT_EQ(taken().id, "r");
  EXPECT_HAS(ask(ControlVerb::kCommit, "c").text, "rollback 'r' is in progress");
  server_->phase("reverse");
  server_->finish(false, "rolled back", "asked");
  EXPECT_EQ(swap.text(), "accepted, probation, reverse, rolled back!");
  EXPECT_EQ(rollback.text(), "accepted, reverse, rolled back!");
  EXPECT_FALSE(server_->take());
}

TEST_F(ControlServerTest, CancelSetsAFlagUntilTheEnd) {
  start();
  EXPECT_HAS(ask(ControlVerb::kCancel, "c").text, "no request is in progress");
  Asked swap = asked(ControlVerb::kSwap, "s");
  taken();
  EXPECT_FALSE(server_->cancel_requested());
  const ControlReply reply = ask(ControlVerb::kCancel, "c");
  EXPECT_TRUE(reply.ok);
  EXPECT_HAS(reply.text, "swap 's' is asked to stop");
  EXPECT_TRUE(server_->cancel_requested());
  server_->finish(false, "refused", "cancelled");
  EXPECT_FALSE(server_->cancel_requested());
  EXPECT_EQ(swap.text(), "accepted, refused!");
}

TEST_F(ControlServerTest, CancelWithdrawsARequestThatHasNotBegun) {
  start();
  Asked swap = asked(ControlVerb::kSwap, "s");
  for (int i = 0; i < 1000 && !status().facts.contains("in_progress"); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(ask(ControlVerb::kCancel, "c").name, "cancelled");
  EXPECT_EQ(swap.text(), "accepted, refused!");
  EXPECT_FALSE(server_->take());
  EXPECT_FALSE(server_->cancel_requested());
  EXPECT_FALSE(status().facts.contains("in_progress"));
}

TEST_F(ControlServerTest, AClientThatClosesCancelsNothing) {
  start();
  test::RawClient client(run());
  ASSERT_TRUE(client.send(control_line(request(ControlVerb::kSwap, "s")) + "\n"));
  client.close();
  EXPECT_EQ(taken().id, "s");
  server_->phase("create");
  EXPECT_EQ(status().facts["in_progress"]["phase"], "create");
  EXPECT_FALSE(server_->cancel_requested());
  server_->finish(true, "committed", "");
  EXPECT_FALSE(status().facts.contains("in_progress"));
}

TEST_F(ControlServerTest, AClientThatHasSentAllStillGetsItsReplies) {
  start();
  test::RawClient client(run());
  ASSERT_TRUE(client.send(control_line(request(ControlVerb::kSwap, "s")) + "\n"));
  client.end_input();
  taken();
  status();
  server_->finish(true, "committed", "");
  EXPECT_HAS(client.line(), "\"accepted\"");
  EXPECT_HAS(client.line(), "\"committed\"");
  EXPECT_TRUE(client.is_closed());
}

TEST_F(ControlServerTest, FinishAndPhaseWithoutARequestAreIgnored) {
  start();
  server_->phase("create");
  server_->finish(true, "committed", "");
  Asked swap = asked(ControlVerb::kSwap, "s");
  for (int i = 0; i < 1000 && !status().facts.contains("in_progress"); ++i) std::this_thread::sleep_for(1ms);
  server_->finish(true, "committed", "of nothing");
  EXPECT_EQ(taken().id, "s");
  server_->finish(true, "committed", "");
  EXPECT_EQ(swap.text(), "accepted, committed");
}

TEST_F(ControlServerTest, TellsClientsThatTheRunHasEnded) {
  start();
  const std::string socket = read_control_address(run()).socket;
  Asked swap = asked(ControlVerb::kSwap, "s");
  taken();
  test::RawClient idle(run());
  ASSERT_TRUE(idle.send(control_line(request(ControlVerb::kStatus, "q")) + "\n"));
  EXPECT_HAS(idle.line(), "\"status\"");
  server_.reset();
  EXPECT_EQ(swap.text(), "accepted, run ended!");
  EXPECT_HAS(idle.line(), "the run has ended");
  EXPECT_TRUE(idle.is_closed());
  EXPECT_EQ(path_kind_nofollow(socket), PathKind::kAbsent);
  EXPECT_EQ(path_kind_nofollow(run() + "/control.json"), PathKind::kAbsent);
  EXPECT_THROW(ControlClient{run()}, Error);
}

TEST_F(ControlServerTest, TheEndOfARequestPrecedesTheEndOfTheRun) {
  start();
  Asked swap = asked(ControlVerb::kSwap, "s");
  taken();
  server_->finish(true, "committed", "");
  server_.reset();
  EXPECT_EQ(swap.text(), "accepted, committed");
}

TEST_F(ControlServerTest, AManyThreadedRunMayReportFromAnyThread) {
  start();
  Asked swap = asked(ControlVerb::kSwap, "s");
  taken();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        server_->phase("p" + std::to_string(t));
        server_->set_status({{"step", i}});
        server_->cancel_requested();
        server_->take();
      }
    });
  for (int i = 0; i < 20; ++i) status();
  for (std::thread& thread : threads) thread.join();
  server_->finish(true, "committed", "");
  EXPECT_EQ(test::count_of(swap.text(), ", p"), 400u);
}

}  // namespace
}  // namespace chassis
