// chassis.comm/1 as a plugin uses it. The plugin's side is in comm_table_plugin.cpp.
#include <gtest/gtest.h>

#include "host/plugin/manifest.hpp"
#include "host/plugin/status.hpp"
#include "tests/support/comm_ranks.hpp"
#include "tests/support/expect_has.hpp"

namespace comm_table_plugin {
std::string use(const chassis_host_t* table, uint32_t num_ranks);
std::string unknown_axis(const chassis_host_t* table);
std::string malformed_call(const chassis_host_t* table);
std::string agree(const chassis_host_t* table, uint32_t failing);
std::string without_service(const chassis_host_t* table);
}  // namespace comm_table_plugin

namespace chassis {
namespace {

// The host as one plugin instance sees it.
class PluginSide {
 public:
  explicit PluginSide(HostServices& services, const std::string& kind = "parallel") {
    manifest_.id = "stub";
    InstanceContext context;
    context.kind = kind;
    context.plugin_id = context.member_id = "stub";
    context.manifest = &manifest_;
    services_ = services.attach(context);
    table_ = std::make_unique<HostTable>(AbiVersion{CHASSIS_ABI_MAJOR, CHASSIS_ABI_MINOR}, services_.get());
  }
  const chassis_host_t* table() const { return table_->get(); }

 private:
  Manifest manifest_;
  std::unique_ptr<InstanceServices> services_;
  std::unique_ptr<HostTable> table_;
};

void on_ranks(int num_ranks, const std::function<void(Communicator&, const chassis_host_t*)>& body) {
  const auto ends = test::run_ranks(num_ranks, {}, [&](Communicator& communicator, test::RankPlugins& plugins) {
    PluginSide before(plugins.services());  // an instance that is older than the communicator
    plugins.services().set_communicator(&communicator);
    body(communicator, before.table());
    plugins.services().set_communicator(nullptr);
  });
  for (const test::RankEnd& end : ends) EXPECT_FALSE(end.failed) << end.text;
}

TEST(CommTable, RunsTheCallsOfAPlugin) {
  for (int num_ranks : {2, 3})
    on_ranks(num_ranks, [&](Communicator&, const chassis_host_t* host) {
      EXPECT_EQ(comm_table_plugin::use(host, static_cast<uint32_t>(num_ranks)), "");
    });
}

TEST(CommTable, ReportsInvalidCalls) {
  on_ranks(2, [](Communicator& communicator, const chassis_host_t* host) {
    double one[] = {1.0};
    // Otherwise a rank that ends after its refusal is missing when the group is formed.
    communicator.sum(communicator.group({}), one, "connect");
    EXPECT_EQ(comm_table_plugin::unknown_axis(host),
              std::to_string(CHASSIS_NOT_FOUND) + " the mesh has no axis 'tp'; it is dp=2");
    EXPECT_HAS(comm_table_plugin::malformed_call(host), "all_gather 'nothing': dtype 0 is unknown");
  });
}

TEST(CommTable, StopsAllRanksIfOneFails) {
  on_ranks(3, [](Communicator& communicator, const chassis_host_t* host) {
    EXPECT_EQ(comm_table_plugin::agree(host, 7), "no failure");
    const std::string failure = comm_table_plugin::agree(host, 1);
    EXPECT_HAS(failure, std::to_string(CHASSIS_RESOURCE_EXHAUSTED) + " ");
    EXPECT_HAS(failure, communicator.rank() == 1 ? "no room on rank 1" : "rank 1: stub: no room on rank 1");
  });
}

// The parameters that an optimizer steps differ between meshes.
TEST(CommTable, RefusesAnOptimizerAndNamesWhatItNeeds) {
  const auto ends = test::run_ranks(2, {}, [&](Communicator& communicator, test::RankPlugins& plugins) {
    const PluginSide side(plugins.services(), "optimizer");
    plugins.services().set_communicator(&communicator);
    const std::string failure = comm_table_plugin::agree(side.table(), 7);
    EXPECT_HAS(failure, std::to_string(CHASSIS_FAILED_PRECONDITION) + " ");
    EXPECT_HAS(failure, "optimizer 'stub' communicates by chassis.comm/1");
    EXPECT_HAS(failure, "sum_over_parameters of chassis_optimizer_step_t");
    std::string refusal;  // the exception must not outlive the table
    try {
      comm_table_plugin::use(side.table(), 2);
    } catch (const std::exception& error) {
      refusal = error.what();
    }
    EXPECT_HAS(refusal, "sum_over_parameters");
    plugins.services().set_communicator(nullptr);
  });
  for (const test::RankEnd& end : ends) EXPECT_FALSE(end.failed) << end.text;
}

TEST(CommTable, IsNotOfferedWithoutACommunicator) {
  test::RankPlugins plugins;
  PluginSide side(plugins.services());
  EXPECT_HAS(comm_table_plugin::without_service(side.table()), "this host has no service chassis.comm/1");

  Manifest manifest;
  manifest.id = "sharder";
  manifest.required_services = {"chassis.comm/1"};
  InstanceContext context;
  context.manifest = &manifest;
  EXPECT_TRUE(plugins.services().offers("chassis.comm/1"));
  try {
    plugins.services().attach(context);
    FAIL();
  } catch (const Error& error) {
    EXPECT_HAS(error.what(), "requires chassis.comm/1, but no ranks are connected");
  }
}

}  // namespace
}  // namespace chassis
