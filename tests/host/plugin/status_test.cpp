// Statuses, their conversion to and from Error, and the host table.
#include "host/plugin/status.hpp"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "host/plugin/call.hpp"
#include "tests/host/plugin/fake_services.hpp"
#include "tests/host/plugin/plugin_files.hpp"

namespace chassis {
namespace {

chassis_status_t* status_of(const std::function<void()>& act) {
  try {
    act();
  } catch (...) {
    return status_of_current_exception();
  }
  return nullptr;
}

TEST(Status, BecomesAnErrorWithMessageFactsAndCauses) {
  const HostTable table({0, 1}, nullptr);
  const chassis_host_t* host = table.get();
  chassis_status_t* cause = host->status_new(host, CHASSIS_NOT_FOUND, str_of("no such file"), nullptr);
  host->status_add(cause, str_of("path"), str_of("a.bin"));
  chassis_status_t* status = host->status_new(host, CHASSIS_INVALID_ARGUMENT, str_of("cannot start"), cause);
  host->status_add(status, str_of("rank"), str_of("3"));
  EXPECT_EQ(host->status_code(status), CHASSIS_INVALID_ARGUMENT);
  EXPECT_EQ(view_of(host->status_message(status)), "cannot start (rank=3)\ncaused by: no such file (path=a.bin)");
  const Thrown thrown = thrown_by([&] { throw_if_failed(status, "plugin 'x' 1.0.0"); });
  EXPECT_EQ(thrown.code, ExitCode::kConfig);
  EXPECT_EQ(thrown.text, "plugin 'x' 1.0.0: cannot start (rank: 3)\ncaused by: no such file (path=a.bin)");
}

TEST(Status, CodesBecomeExitCodes) {
  const std::pair<int32_t, ExitCode> pairs[] = {
      {CHASSIS_INVALID_ARGUMENT, ExitCode::kConfig}, {CHASSIS_RESOURCE_EXHAUSTED, ExitCode::kOutOfMemory},
      {CHASSIS_ABORTED, ExitCode::kCommunication},   {CHASSIS_UNAVAILABLE, ExitCode::kCommunication},
      {CHASSIS_DATA_LOSS, ExitCode::kStorage},       {CHASSIS_CANCELLED, ExitCode::kPlugin},
      {CHASSIS_INTERNAL, ExitCode::kPlugin},         {CHASSIS_UNIMPLEMENTED, ExitCode::kPlugin},
      {CHASSIS_NOT_FOUND, ExitCode::kPlugin}};
  for (const auto& [code, exit_code] : pairs) {
    EXPECT_EQ(thrown_by([&, c = code] { throw_if_failed(make_status(c, "m"), "x"); }).code, exit_code) << code;
  }
  EXPECT_NO_THROW(throw_if_failed(nullptr, "x"));
}

TEST(Status, CancelledStopsTheRunOnlyIfTheHostAskedForIt) {
  const Thrown own = thrown_by([] { throw_if_failed(make_status(CHASSIS_CANCELLED, "no more"), "x"); });
  EXPECT_EQ(own.code, ExitCode::kPlugin);
  EXPECT_EQ(own.text, "x: no more (status: CANCELLED, although the host did not ask it to stop)");
  chassis_status_t* asked = status_of([] { throw Error(ExitCode::kStopped, "stopped by SIGINT"); });
  EXPECT_EQ(status_code(asked), CHASSIS_CANCELLED);
  const Thrown passed_on = thrown_by([&] { throw_if_failed(asked, "x"); });
  EXPECT_EQ(passed_on.code, ExitCode::kStopped);
  EXPECT_EQ(passed_on.text, "x: stopped by SIGINT");
}

TEST(Status, NamesTheCallOfAMistakeThatIsFoundInAStep) {
  const CallSite& site = call_site("provider 'x'", "layers.q_proj");
  const auto refusal = [] {
    return thrown_by([] { throw_if_failed(make_status(CHASSIS_INVALID_ARGUMENT, "odd"), "provider 'x' on q_proj"); })
        .text;
  };
  {
    const PluginCall call(site, "forward", 3);
    EXPECT_EQ(refusal(), "provider 'x' on q_proj in forward (unit 3): odd");
  }
  const PluginCall call(site, "step");
  EXPECT_EQ(refusal(), "provider 'x' on q_proj: odd");
  set_current_step(17);
  EXPECT_EQ(refusal(), "provider 'x' on q_proj in step, step 17: odd");
  set_current_step(0);
}

TEST(Status, KeepsTheExitCodeOfAHostErrorThatIsItsCause) {
  chassis_status_t* service = status_of([] { throw Error(ExitCode::kNumeric, "loss is nan"); });
  const HostTable table({0, 1}, nullptr);
  chassis_status_t* status = table.get()->status_new(table.get(), CHASSIS_INTERNAL, str_of("step failed"), service);
  const Thrown thrown = thrown_by([&] { throw_if_failed(status, "x"); });
  EXPECT_EQ(thrown.code, ExitCode::kNumeric);
  EXPECT_TEXT(thrown.text, "caused by: loss is nan");
}

TEST(Status, KeepsThatAHostErrorCameFromAnotherRank) {
  const auto is_from_another_rank = [](chassis_status_t* status) {
    try {
      throw_if_failed(status, "x");
    } catch (const Error& error) {
      return error.is_from_another_rank();
    }
    return false;
  };
  const auto received = [] {
    return status_of([] { throw Error(ExitCode::kNumeric, "rank 2: loss is nan").from_another_rank(); });
  };
  const HostTable table({0, 1}, nullptr);
  EXPECT_TRUE(is_from_another_rank(received()));
  EXPECT_TRUE(
      is_from_another_rank(table.get()->status_new(table.get(), CHASSIS_INTERNAL, str_of("step failed"), received())));
  EXPECT_FALSE(is_from_another_rank(status_of([] { throw Error(ExitCode::kNumeric, "rank 2: loss is nan"); })));
}

TEST(Status, IsMadeFromEveryException) {
  chassis_status_t* status = status_of([] { throw std::bad_alloc(); });
  EXPECT_EQ(status_code(status), CHASSIS_RESOURCE_EXHAUSTED);
  status_release(status);
  status = status_of([] { throw std::runtime_error("odd"); });
  EXPECT_EQ(status_code(status), CHASSIS_INTERNAL);
  EXPECT_EQ(status_text(status), "odd");
  status_release(status);
  status = status_of([] { throw 7; });
  EXPECT_EQ(status_text(status), "an exception of unknown type");
  status_release(status);
}

TEST(Status, IsNotReadIfTheHostDidNotMakeIt) {
  const auto garbage = reinterpret_cast<chassis_status_t*>(0x1234);
  EXPECT_EQ(status_code(garbage), CHASSIS_UNKNOWN);
  status_release(garbage);
  EXPECT_TEXT(thrown_by([&] { throw_if_failed(garbage, "plugin 'x' 1.0.0"); }).text,
              "plugin 'x' 1.0.0 returned 0x1234 as its status, which the host did not make or has already released");
  chassis_status_t* const released = make_status(CHASSIS_INTERNAL, "m");
  status_release(released);
  status_release(released);
  EXPECT_EQ(thrown_by([&] { throw_if_failed(released, "x"); }).code, ExitCode::kPlugin);
}

TEST(Status, NeverHasTheCodeOk) {
  for (const int32_t code : {CHASSIS_OK, -1, 99}) {
    chassis_status_t* status = make_status(code, "");
    EXPECT_EQ(status_code(status), CHASSIS_UNKNOWN);
    EXPECT_EQ(status_text(status), fmt::format("no message, status UNKNOWN (its status code={}, which {})", code,
                                               code == CHASSIS_OK ? "means OK" : "is unknown"));
    status_release(status);
  }
  EXPECT_EQ(status_code(nullptr), CHASSIS_OK);
}

TEST(Status, FreesLongChainsWithoutRecursion) {
  const HostTable table({0, 1}, nullptr);
  chassis_status_t* status = nullptr;
  for (int i = 0; i < 200000; ++i) status = table.get()->status_new(table.get(), CHASSIS_INTERNAL, str_of("x"), status);
  status_release(status);
}

TEST(HostTable, AnswersWithTheNegotiatedMinorAndTheInstancesServices) {
  const std::set<std::string> offered = {CHASSIS_LOG_ID, "chassis.broken/1"};
  FakeInstanceServices services(offered);
  const HostTable table({0, 7}, &services);
  const chassis_host_t* host = table.get();
  EXPECT_EQ(host->struct_size, sizeof(chassis_host_t));
  EXPECT_EQ(host->abi_minor, 7);
  EXPECT_NE(host->get_service(host, str_of(CHASSIS_LOG_ID)), nullptr);
  EXPECT_EQ(host->get_service(host, str_of("chassis.nothing/1")), nullptr);
  EXPECT_EQ(host->get_service(host, str_of("chassis.broken/1")), nullptr);
  const HostTable empty({0, 1}, nullptr);
  EXPECT_EQ(empty.get()->get_service(empty.get(), str_of(CHASSIS_LOG_ID)), nullptr);
}

}  // namespace
}  // namespace chassis
