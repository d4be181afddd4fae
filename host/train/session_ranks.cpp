// The part of a session that makes one run of several processes: the mesh, its communication and the parallel stack.
#include <algorithm>

#include "chassis/kind/comm.h"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/mesh/axes.hpp"
#include "host/plugin/manifest.hpp"
#include "host/plugin/status.hpp"
#include "host/state/float_dtype.hpp"
#include "host/train/session.hpp"

namespace chassis {
namespace {

// Slowest first: ranks that talk most are neighbours.
constexpr const char* kAxes[] = {"pp", "dp_replicate", "dp_shard", "cp", "ep", "tp"};

// One line per key, for comparison between ranks: without origins, since every machine has its own files.
std::string values_text(const Config& config) {
  std::string text;
  for (const auto& [key, value] : dotted_values(config.json())) text += key + " = " + value.dump() + "\n";
  return text;
}

// One line per plugin, likewise: wherever it is installed.
std::string plugins_text(const Json& lock) {
  std::vector<std::string> lines;
  for (const Json& plugin : lock["plugins"])
    lines.push_back(plugin["id"].get<std::string>() + " " + plugin["version"].get<std::string>() +
                    " sha256:" + plugin["sha256"].get<std::string>() + "\n");
  std::sort(lines.begin(), lines.end());
  std::string text = "host " + lock["host"].dump() + "\n";
  for (const std::string& line : lines) text += line;
  return text;
}

}  // namespace

void Session::make_mesh(const SessionOptions& options) {
  std::vector<StackMember> members;
  for (size_t i = 0; i < config_.count("parallel"); ++i) {
    const std::string key = "parallel." + std::to_string(i);
    members.push_back({create(key, "parallel", config_.get_string(key + ".plugin")), config_.position(key)});
  }
  if (!members.empty()) stack_ = std::make_unique<ParallelStack>(std::move(members));

  std::vector<AxisRequest> requests;
  bool rest_is_given = false;
  for (const char* name : kAxes) {
    const std::string key = std::string("mesh.") + name;
    AxisRequest request{name, 1, config_.origin(key).by_user(), config_.position(key)};
    if (request.by_user) request.size = config_.get_int(key);
    rest_is_given |= request.size == -1;
    requests.push_back(request);
  }
  const int world_size = options.world_size > 0 ? options.world_size : world_->size();
  const std::string home = stack_ ? stack_->home_axis() : "dp_shard";
  for (AxisRequest& request : requests)
    if (request.name == home && !request.by_user && !rest_is_given) request.size = -1;
  std::vector<MeshAxis> axes;
  for (const auto& [name, size] : axis_sizes(requests, world_size)) axes.push_back({name, size});
  mesh_ = MeshShape(std::move(axes));
  rank_ = options.world_size > 0 ? options.rank : world_->rank();
  if (!stack_ && world_size > 1)
    throw Error(
        ExitCode::kConfig, config_.position("parallel"),
        "the run has " + std::to_string(world_size) + " processes, but [[parallel]] names no strategy to divide it")
        .hint("add [[parallel]] plugin = \"…\"; `chassis plugins list` shows what there is");
}

void Session::make_communicator(const SessionOptions& options) {
  if (mesh_.world_size() == 1) return;
  const bool planned = options.world_size > 0;
  const std::string id = config_.get_string("comm.plugin");
  std::unique_ptr<Instance> backend;
  if (planned || id == "auto") {
    backend = choose_comm(planned);
  } else {
    backend = create("comm", "comm", id);
    const auto& table = backend->interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID);
    try {
      backend->check(
          table.supports(backend->get("supports"), static_cast<uint32_t>(resolve_.device.type), resolve_.device.index));
    } catch (const Error& error) {
      throw Error(ExitCode::kConfig, config_.position("comm.plugin"), error.message())
          .hint("set comm.plugin = \"auto\" to take one that serves this device");
    }
    if ((table.properties & CHASSIS_COMM_MOVES_NOTHING) != 0)
      throw Error(ExitCode::kConfig, config_.position("comm.plugin"),
                  "comm.plugin = \"" + id + "\" moves nothing between ranks: every one would train by itself")
          .hint("it is for plans; set comm.plugin = \"auto\" to take one that serves this device");
  }
  if (!planned) {
    world_->expect_same("configuration", values_text(config_));
    world_->expect_same("plugins", plugins_text(registry_->lock()));
  }
  const Device device = planned ? Device{} : resolve_.device;
  communicator_ = std::make_unique<Communicator>(std::move(backend), *world_, mesh_, rank_, device);
  services_->set_communicator(communicator_.get());
}

// The first that serves this device: those made for it before those for any. Or the first that needs none.
std::unique_ptr<Instance> Session::choose_comm(bool moves_nothing) {
  const bool cuda = !moves_nothing && resolve_.device.type == Device::Type::kCuda;
  std::vector<std::string> ids = registry_->index().ids("comm");
  std::stable_partition(ids.begin(), ids.end(), [&](const std::string& id) {
    return (registry_->index().at("comm", id).manifest.cuda > 0) == cuda;
  });
  std::string refusals;
  for (const std::string& id : ids) {
    try {
      auto backend = registry_->open("comm", id);
      const auto& table = backend->interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID);
      if (((table.properties & CHASSIS_COMM_MOVES_NOTHING) != 0) != moves_nothing) continue;
      if (moves_nothing) return backend;
      backend->check(
          table.supports(backend->get("supports"), static_cast<uint32_t>(resolve_.device.type), resolve_.device.index));
      return backend;
    } catch (const Error& error) {
      refusals += "\n  " + std::string(error.what());
    }
  }
  throw Error(ExitCode::kCommunication, config_.position("comm"),
              "no comm plugin serves " + resolve_.device.text() + (refusals.empty() ? "" : ":" + refusals))
      .hint("install one, or name it in [comm] plugin; `chassis plugins list` shows what there is");
}

void Session::resolve_parallel() {
  if (!stack_) return;
  StackFacts facts;
  facts.mesh = mesh_;
  facts.rank = rank_;
  facts.device = resolve_.device;
  facts.recomputes = config_.get_string("recompute.mode") == "full";
  facts.reduce_dtype = float_dtype(config_.get_string("precision.reduce"), "precision.reduce");
  if (config_.use() == ConfigUse::kTraining) {
    const int data_ranks = mesh_.size(mesh_.find("dp_replicate")) * mesh_.size(mesh_.find("dp_shard"));
    facts.num_microbatches = batch_sizes(config_, data_ranks).num_microbatches;
  }
  try {
    stack_->resolve(program(), parameters(), facts);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kConfig || !error.where().file.empty()) throw;
    throw Error(error.code(), config_.position("parallel"), error.message()).hint(error.hint_text());
  }
  if (optimizer_) optimizer_->place();
  executor_->set_events(stack_.get());
}

void Session::allocate(Device device) {
  parameters().allocate(device);
  if (stack_) stack_->bind(communicator_.get(), device);
  if (optimizer_) optimizer_->allocate(device);
}

void Session::publish() {
  if (stack_)
    stack_->refresh();
  else
    parameters().publish();
}

}  // namespace chassis
