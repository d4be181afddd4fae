// The life cycle of instances, and the interfaces of members.
#include "host/plugin/instance.hpp"

#include <gtest/gtest.h>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/plugin/crash_report.hpp"
#include "host/plugin/intercept.hpp"
#include "tests/host/plugin/fake_services.hpp"
#include "tests/host/plugin/fixtures/fixture.h"
#include "tests/host/plugin/plugin_files.hpp"

template <>
inline constexpr uint32_t chassis::kFirstSize<test_interface_t> = offsetof(test_interface_t, newer);

namespace chassis {
namespace {

class PluginInstance : public testing::Test {
 protected:
  PluginInstance() { policy_.cache_folder = scratch_ / "cache"; }

  std::unique_ptr<Instance> make(const std::string& file, const std::string& member) {
    auto& library = libraries_[file];
    if (!library) {
      library = std::make_shared<const PluginLibrary>(PluginLibrary::load(read_plugin_file(fixture(file)), policy_));
    }
    InstanceContext context{library->manifest().id, "ops", member, &library->manifest(), Json::object(), {}};
    return std::make_unique<Instance>(library, std::move(context), services_);
  }
  Thrown failure(const std::string& member) {
    return thrown_by([&] { make("failing/failing.so", member); });
  }

  ScratchFolder scratch_;
  LoadPolicy policy_;
  FakeServices services_;
  std::map<std::string, std::shared_ptr<const PluginLibrary>> libraries_;
};

int64_t num_hooks_called(const Instance& instance) {
  return instance.interface<test_interface_t>(TEST_INTERFACE_ID).num_hooks_called(instance.get());
}

TEST_F(PluginInstance, GoesThroughItsStatesInOrder) {
  const auto instance = make("good/plain.so", "plain");
  EXPECT_EQ(instance->state(), InstanceState::kCreated);
  instance->prepare();
  instance->activate();
  EXPECT_EQ(instance->state(), InstanceState::kActive);
  instance->quiesce();
  instance->deactivate();
  EXPECT_EQ(instance->state(), InstanceState::kDeactivated);
  EXPECT_EQ(num_hooks_called(*instance), 4);
}

TEST_F(PluginInstance, RefusesCallsInTheWrongState) {
  const auto instance = make("good/plain.so", "plain");
  const Thrown thrown = thrown_by([&] { instance->activate(); });
  EXPECT_EQ(thrown.code, ExitCode::kInternal);
  EXPECT_TEXT(thrown.text, "plugin 'plain' 1.2.3: activate is legal when it is prepared, but it is created");
  thrown_by([&] { instance->quiesce(); });
  thrown_by([&] { instance->deactivate(); });
  instance->prepare();
  thrown_by([&] { instance->prepare(); });
  EXPECT_EQ(num_hooks_called(*instance), 1);
}

TEST_F(PluginInstance, ReceivesTheNegotiatedMinor) {
  const auto instance = make("good/plain.so", "plain");
  EXPECT_EQ(instance->interface<test_interface_t>(TEST_INTERFACE_ID).abi_minor(instance->get()), 20);
}

TEST_F(PluginInstance, NamesTheMemberWhenCreateFails) {
  const Thrown thrown = failure("create_fails");
  EXPECT_EQ(thrown.code, ExitCode::kConfig);
  EXPECT_EQ(
      thrown.text,
      "plugin 'failing' 0.1.0 (ops/create_fails): cannot read its table (path: table.bin)\ncaused by: no such file");
  EXPECT_EQ(failure("out_of_memory").code, ExitCode::kOutOfMemory);
}

TEST_F(PluginInstance, RefusesAnInvalidInstance) {
  EXPECT_TEXT(failure("no_instance").text, "create returned no instance and no error");
  EXPECT_TEXT(failure("short_instance").text, "the instance that create returned has 16 bytes, expected at least 64");
  EXPECT_TEXT(failure("no_destroy").text, "create returned an instance without destroy");
}

TEST_F(PluginInstance, CanOnlyBeDestroyedAfterAFailure) {
  const auto instance = make("failing/failing.so", "prepare_fails");
  const Thrown thrown = thrown_by([&] { instance->prepare(); });
  EXPECT_EQ(thrown.code, ExitCode::kPlugin);
  EXPECT_TEXT(thrown.text, "plugin 'failing' 0.1.0 (ops/prepare_fails): prepare failed: the hook fails");
  EXPECT_EQ(instance->state(), InstanceState::kFailed);
  EXPECT_EQ(thrown_by([&] { instance->prepare(); }).code, ExitCode::kInternal);
}

TEST_F(PluginInstance, CountsAFailedShutdown) {
  log::reset_counted_warnings();
  {
    const auto instance = make("failing/failing.so", "quiesce_fails");
    instance->prepare();
    instance->activate();
  }
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].first, "plugins that did not shut down cleanly");
}

TEST_F(PluginInstance, CountsTensorsThatItDoesNotRelease) {
  log::reset_counted_warnings();
  make("failing/failing.so", "keeps_tensor");
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].first, "plugin 'failing' 0.1.0 (ops/keeps_tensor): tensors not released");
  EXPECT_EQ(counted_warnings()[0].second, 1u);
}

TEST_F(PluginInstance, ReadsTheMissingTailOfAnOlderTableAsZero) {
  const auto instance = make("failing/failing.so", "old_table");
  const auto& table = instance->interface<test_interface_t>(TEST_INTERFACE_ID);
  EXPECT_EQ(table.newer, nullptr);
  EXPECT_FALSE(CHASSIS_HAS(&table, newer));
  EXPECT_TRUE(CHASSIS_HAS(&table, abi_minor));
  EXPECT_EQ(&table, &instance->interface<test_interface_t>(TEST_INTERFACE_ID));
}

TEST_F(PluginInstance, RefusesATableThatIsTooShort) {
  const auto instance = make("failing/failing.so", "short_table");
  EXPECT_TEXT(thrown_by([&] { instance->interface<test_interface_t>(TEST_INTERFACE_ID); }).text,
              "its chassis.test/1 has 8 bytes, expected at least 24");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers have functions of these names
TEST_F(PluginInstance, CannotCloseTheDescriptorsOfTheProgram) {
  const ExitGuard guard;
  const ScratchFolder folder;
  File file = File::create_exclusive(folder / "ours");
  const auto instance = make("closing/closing.so", "closing");
  log::reset_counted_warnings();
  instance->prepare();
  EXPECT_NO_THROW(file.pwrite_exact("whole", 5, 0));
  file.close();
  EXPECT_EQ(read_file(folder / "ours"), "whole");
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].first, "descriptors of the program that plugins tried to close");
  EXPECT_GE(counted_warnings()[0].second, 2u) << "the file, and standard output";
  log::reset_counted_warnings();
}

TEST_F(PluginInstance, FilesAndThreadsAreSeenAlsoIfTheThreadHasEnded) {
  const ScratchFolder folder, other;
  const ExitGuard guard;
  ::setenv("CHASSIS_TEST_FILE", (folder / "left").c_str(), 1);
  const auto seen = [&](const std::string& given) {
    const auto instance = make("closing/closing.so", "closing");
    instance->prepare();
    const ActionWatch watch({given});
    instance->activate();
    return watch.actions();
  };
  const PluginActions outside = seen(other.path());
  ASSERT_EQ(outside.files.size(), 1u);
  EXPECT_EQ(outside.files[0], "it wrote to " + (folder / "left") + " in plugin 'closing' 0.1.0 in activate");
  ASSERT_EQ(outside.threads.size(), 1u);
  EXPECT_TEXT(outside.threads[0], "it started a thread in plugin 'closing' 0.1.0 in activate");
  EXPECT_TRUE(seen(folder.path()).files.empty());
  ::unsetenv("CHASSIS_TEST_FILE");
  log::reset_counted_warnings();
}
#endif

TEST_F(PluginInstance, AnExceptionOutOfATableNamesPluginCallAndStep) {
  const auto instance = make("good/plain.so", "plain");
  set_current_step(3);
  const auto status_of = [&](auto thrown) {
    return thrown_by([&] { instance->call("step", [&](auto*) -> chassis_status_t* { throw thrown; }); });
  };
  const Thrown known = status_of(std::runtime_error("through C")), unknown = status_of(42);
  const Thrown value =
      thrown_by([&] { instance->call("workspace_bytes", [&](auto*) -> uint64_t { throw std::bad_alloc(); }); });
  set_current_step(0);
  EXPECT_EQ(known.code, ExitCode::kPlugin);
  EXPECT_TEXT(known.text, "plugin 'plain' 1.2.3 in step, step 3: threw an exception across the boundary of the ABI");
  EXPECT_TEXT(known.text, ": through C");
  EXPECT_EQ(unknown.code, ExitCode::kPlugin);
  EXPECT_TEXT(unknown.text, "plugin 'plain' 1.2.3 in step, step 3: threw an exception across the boundary of the ABI");
  EXPECT_EQ(value.code, ExitCode::kPlugin);
  EXPECT_TEXT(value.text, "plugin 'plain' 1.2.3 in workspace_bytes, step 3: threw an exception");
  EXPECT_EQ(instance->call("max_positions", [](auto*) { return int64_t{7}; }), 7);
  EXPECT_EQ(call_in_progress(), "");
}

TEST_F(PluginInstance, NamesAnInterfaceThatIsMissing) {
  const auto instance = make("good/plain.so", "plain");
  EXPECT_EQ(instance->interface_or_null<test_interface_t>("chassis.quant/1"), nullptr);
  EXPECT_TEXT(thrown_by([&] { instance->interface<test_interface_t>("chassis.quant/1"); }).text,
              "plugin 'plain' 1.2.3 does not offer the interface chassis.quant/1");
}

}  // namespace
}  // namespace chassis
