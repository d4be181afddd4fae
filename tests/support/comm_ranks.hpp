// Ranks as threads of the test: each with a World, a backend and a Communicator of its own, over a real store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/base/json.hpp"
#include "host/launch/world.hpp"
#include "host/plugin/registry.hpp"
#include "host/plugin/thread_role.hpp"
#include "host/service/comm.hpp"
#include "host/service/host_services.hpp"

namespace chassis::test {

// How a rank ended.
struct RankEnd {
  bool failed = false, remote = false;
  ExitCode code = ExitCode::kOk;
  std::string text;
};

inline RankEnd rank_end(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const RemoteError& error) {
    return {true, true, error.code(), error.what()};
  } catch (const Error& error) {
    return {true, false, error.code(), error.what()};
  } catch (const std::exception& error) {
    return {true, false, ExitCode::kInternal, error.what()};
  }
}

// The plugins of a folder for one rank. Ranks load them one after another, since the plugin cache is
// safe for processes, not for threads.
class RankPlugins {
 public:
  explicit RankPlugins(const std::string& folder = CHASSIS_TEST_PLUGIN_DIR)
      : registry_(PluginIndex({{folder, "test", true, {}}}), LoadPolicy{}, services_) {}
  // Active; `options` replace defaults.
  std::unique_ptr<Instance> make(const std::string& kind, const std::string& id, const Json& options = Json::object()) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    Json all = Json::object();
    for (const OptionSpec& spec : registry_.option_specs(kind, id)) all[spec.name] = Json::parse(spec.default_json);
    all.update(options);
    auto instance = registry_.create(kind, id, all);
    instance->prepare();
    instance->activate();
    return instance;
  }
  HostServices& services() { return services_; }
  MetricsStore& metrics() { return metrics_; }

 private:
  MetricsStore metrics_;
  HostServices services_{0, metrics_};
  PluginRegistry registry_;
};

struct RankSetup {
  std::string backend = "gloo";
  Json options = Json::object();
  std::vector<MeshAxis> axes;  // empty: one axis "dp" of all ranks
  std::chrono::milliseconds deadline = std::chrono::seconds(30);
  std::string plugin_folder = CHASSIS_TEST_PLUGIN_DIR;
};

inline Launch test_launch(int rank, int size, int port) {
  Launch launch{.source = "test", .rank = rank, .world_size = size, .local_rank = rank, .local_world_size = size};
  launch.master_port = port;
  launch.store_is_elsewhere = true;
  return launch;
}

// Runs `body` on each of `num_ranks` ranks.
inline std::vector<RankEnd> run_ranks(int num_ranks, const RankSetup& setup,
                                      const std::function<void(Communicator&, RankPlugins&)>& body) {
  StoreServer server("127.0.0.1", 0);
  std::vector<RankEnd> ends(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const ThreadRoleScope role(ThreadRole::kStep);
      ends[static_cast<size_t>(rank)] = rank_end([&] {
        World world(test_launch(rank, num_ranks, server.port()), std::chrono::seconds(30));
        world.set_deadline(setup.deadline);
        world.run([&] {
          RankPlugins plugins(setup.plugin_folder);
          MeshShape mesh(setup.axes.empty() ? std::vector<MeshAxis>{{"dp", num_ranks}} : setup.axes);
          auto backend = num_ranks == 1 ? nullptr : plugins.make("comm", setup.backend, setup.options);
          Communicator communicator(std::move(backend), world, mesh, rank, Device{});
          body(communicator, plugins);
          return 0;
        });
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

}  // namespace chassis::test
