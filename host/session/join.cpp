// Finds the launcher, connects to the other ranks, and watches them while the verb runs.
#include "host/session/join.hpp"

#include "host/base/log.hpp"
#include "host/base/thread.hpp"
#include "host/launch/failed_start.hpp"
#include "host/launch/limits.hpp"
#include "host/launch/watchdog.hpp"

namespace chassis {

namespace {

void require_limits(const Launch& launch) {
  require_clock();
  // The ranks of --nproc have the limit of the process that started them.
  if (launch.rank == 0 && !launch.store_is_elsewhere) require_descriptors(launch.world_size);
}

}  // namespace

int join_world(const Settings::Comm& comm, const std::function<int(World&)>& body) {
  const Launch launch = telling_waiting_ranks([] { return discover_launch(process_environment()); });
  if (launch.alone()) {
    World world;
    return body(world);
  }
  log::set_rank(launch.rank);
  telling_waiting_ranks([&] { require_limits(launch); });
  World world(launch, std::chrono::seconds(*comm.init_timeout_s));
  world.set_deadline(std::chrono::seconds(*comm.timeout_s));
  const ThreadFailures thread_failures([&world](const Error& error) { world.report_failure(error); });
  const Watchdog watchdog(world);
  return world.run([&] { return body(world); });
}

}  // namespace chassis
