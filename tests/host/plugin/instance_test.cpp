// The life cycle of instances, and the interfaces of members.
#include "host/plugin/instance.hpp"

#include <gtest/gtest.h>

#include "host/base/log.hpp"
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
  EXPECT_EQ(instance->interface<test_interface_t>(TEST_INTERFACE_ID).abi_minor(instance->get()), 2);
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

TEST_F(PluginInstance, NamesAnInterfaceThatIsMissing) {
  const auto instance = make("good/plain.so", "plain");
  EXPECT_EQ(instance->interface_or_null<test_interface_t>("chassis.quant/1"), nullptr);
  EXPECT_TEXT(thrown_by([&] { instance->interface<test_interface_t>("chassis.quant/1"); }).text,
              "plugin 'plain' 1.2.3 does not offer the interface chassis.quant/1");
}

}  // namespace
}  // namespace chassis
