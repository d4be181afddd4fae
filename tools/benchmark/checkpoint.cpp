// Measures saving and loading of a model of MIB mebibytes, whose rows the ranks of this launch divide:
//   chassis-checkpoint DIR MIB      under torchrun, mpirun, or alone
// Rank 0 prints a line of JSON with the maxima over the ranks: seconds of a save, of the stall of a save in the
// background during a longer computation, and of loads from a cold and a warm cache; and for each, the MiB by which the
// peak rose above the shards.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>

#include "host/base/json.hpp"
#include "host/checkpoint/reader.hpp"
#include "host/checkpoint/save.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"
#include "host/service/metrics.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr uint64_t kMib = 1 << 20;

uint64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  return 0;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

class Bench {
 public:
  Bench(const std::string& directory, uint64_t num_bytes, World& world)
      : directory_(directory), world_(world), mesh_({{"dp", world.size()}}) {
    PluginFolder folder{CHASSIS_BENCHMARK_PLUGINS, "benchmark", true, {}};
    registry_ = std::make_unique<PluginRegistry>(PluginIndex({folder}), LoadPolicy{}, services_);
    instance_ = registry_->open("format", "native");
    format_ = std::make_unique<FormatPlugin>(*instance_);
    const auto add = [&](const std::string& name, uint64_t bytes) {
      Descriptor d = Descriptor::plain(name, Dtype::f32, {static_cast<int64_t>(bytes / 4096), 1024});
      d.placements = {Placement::dim_chunk({"dp"}, 0)};
      const Shape shape = Layout(d, mesh_).local_shape(world.rank());
      Tensor shard = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), Dtype::f32);
      auto* values = shard.data_as<float>();
      for (int64_t i = 0; i < shard.num_elements(); ++i) values[i] = static_cast<float>(i % 9973);
      shards_[name] = shard;
      tensors_.push_back(d);
    };
    add("embed", num_bytes / 8);
    for (uint64_t at = num_bytes / 8; at < num_bytes; at += 32 * kMib)
      add("layer." + std::to_string(at / kMib), 32 * kMib);
  }

  void run() {
    std::vector<SaveTensor> tensors;
    for (const Descriptor& d : tensors_) tensors.push_back(SaveTensor::plain(d));
    const SavePlan plan = plan_save(tensors, mesh_, *format_);
    const BucketPair buckets(16 * kMib);
    Json out = {{"bytes", plan.tensor_bytes}};
    const SaveResult saved = measured(out, "save", [&] { return save(plan, buckets, "one", Save::Where::kHere, 0); });
    const SaveResult beside = measured(
        out, "background", [&] { return save(plan, buckets, "two", Save::Where::kOnAThread, 1.5 * saved.seconds); });
    out["stall_s"] = largest(beside.stall_seconds);
    out["sync_s"] = saved.sync_seconds;
    if (world_.rank() == 0) {
      ::sync();
      std::ofstream("/proc/sys/vm/drop_caches") << "1";
    }
    for (const char* name : {"load", "warm_load"})
      measured(out, name, [&] {
        load(buckets, saved.path);
        return 0;
      });
    if (world_.rank() == 0) std::printf("%s\n", out.dump().c_str());
  }

 private:
  template <class Work>
  auto measured(Json& out, const std::string& name, Work&& work) -> decltype(work()) {
    world_.barrier(name);
    const uint64_t before = status_bytes("VmRSS");
    reset_peak();
    const auto start = Clock::now();
    auto result = work();
    world_.barrier(name + " is done");
    out[name + "_s"] = largest(seconds_since(start));
    out[name + "_mib"] = largest(static_cast<double>(status_bytes("VmHWM") - before) / static_cast<double>(kMib));
    return result;
  }

  SaveResult save(const SavePlan& plan, const BucketPair& buckets, const std::string& name, Save::Where where,
                  double step) {
    SaveRequest request;
    request.parent = directory_;
    request.name = name;
    request.tensors = [&](const Descriptor& d, int) { return shards_.at(d.fqn); };
    Save running(*format_, buckets, plan, request, world_, where);
    compute(step);
    running.await_tensors();
    return running.finish();
  }

  void load(const BucketPair& buckets, const std::string& path) {
    std::vector<LoadTensor> wanted;
    for (const Descriptor& d : tensors_) wanted.push_back({d, ""});
    LoadOptions options;
    options.rank = world_.rank();
    CheckpointReader(path, *format_)
        .load(
            wanted, mesh_, buckets, [&](const Descriptor& d, int) { return shards_.at(d.fqn); }, options);
  }

  // Keeps the core busy, as a step does.
  static void compute(double seconds) {
    volatile double sum = 0;
    for (const auto start = Clock::now(); seconds_since(start) < seconds;)
      for (int i = 0; i < 100'000; ++i) sum = sum + 1.0 / (1.0 + i);
  }

  // The maximum over all ranks.
  double largest(double mine) {
    double maximum = 0;
    for (const std::string& text : world_.exchange("largest", std::to_string(mine)))
      maximum = std::max(maximum, std::stod(text));
    return maximum;
  }

  const std::string directory_;
  World& world_;
  const MeshShape mesh_;
  MetricsStore metrics_;
  HostServices services_{0, metrics_};
  std::unique_ptr<PluginRegistry> registry_;
  std::unique_ptr<Instance> instance_;
  std::unique_ptr<FormatPlugin> format_;
  std::vector<Descriptor> tensors_;
  std::map<std::string, Tensor> shards_;
};

}  // namespace
}  // namespace chassis

int main(int argc, char** argv) {
  using namespace chassis;
  if (argc != 3) return std::fprintf(stderr, "chassis-checkpoint DIR MIB\n"), 2;
  const Launch launch = discover_launch(process_environment());
  try {
    auto world =
        launch.world_size > 1 ? std::make_unique<World>(launch, std::chrono::seconds(60)) : std::make_unique<World>();
    return world->run([&] {
      Bench(argv[1], std::stoull(argv[2]) * kMib, *world).run();
      return 0;
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
