// Computes the mesh, opens the comm backend, and compares the settings and plugins of all ranks.
#include "host/session/run_mesh.hpp"

#include <algorithm>

#include "chassis/kind/comm.h"
#include "host/base/claimed_descriptors.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/launch/axes.hpp"
#include "host/plugin/manifest.hpp"
#include "host/plugin/status.hpp"
#include "host/state/float_dtype.hpp"

namespace chassis {
namespace {

// One line per plugin, without its path, which may differ between machines.
std::string plugins_text(const Json& lock) {
  std::vector<std::string> lines;
  for (const Json& plugin : lock["plugins"]) {
    const std::string id = plugin["id"].get<std::string>();
    lines.push_back(id + " " + plugin["version"].get<std::string>() + " sha256:" + plugin["sha256"].get<std::string>() +
                    "\n");
    if (!plugin.contains("libraries")) continue;
    for (const Json& library : plugin["libraries"])
      lines.push_back(id + "/" + library["name"].get<std::string>() +
                      " sha256:" + library["sha256"].get<std::string>() + "\n");
  }
  std::sort(lines.begin(), lines.end());
  std::string text = "host " + lock["host"].dump() + "\n";
  for (const std::string& line : lines) text += line;
  return text;
}

// The first backend that serves this device. Backends with code for its type are tried first. On the CPU, those with
// code for devices are tried last. With `moves_nothing`, the first backend that has this property.
std::unique_ptr<Instance> choose_backend(const Settings::Comm& comm, RunPlugins& plugins, bool moves_nothing,
                                         Device device) {
  const bool wants_code = !moves_nothing && device.spec().accelerator;
  std::vector<std::string> ids = plugins.registry().index().ids("comm");
  std::stable_partition(ids.begin(), ids.end(), [&](const std::string& id) {
    const Manifest& manifest = plugins.registry().index().at("comm", id).manifest;
    return wants_code ? manifest.code_for(device.spec()) != nullptr : !manifest.has_device_code();
  });
  std::string refusals;
  for (const std::string& id : ids) {
    try {
      auto backend = plugins.registry().open("comm", id);
      const auto& table = backend->interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID);
      if (((table.properties & CHASSIS_COMM_MOVES_NOTHING) != 0) != moves_nothing) continue;
      if (moves_nothing) return backend;
      backend->call("supports",
                    [&](auto* self) { return table.supports(self, static_cast<uint32_t>(device.type), device.index); });
      return backend;
    } catch (const Error& error) {
      refusals += "\n  " + std::string(error.what());
    }
  }
  throw Error(ExitCode::kCommunication, comm.where(),
              "no comm plugin serves " + device.text() + (refusals.empty() ? "" : ":" + refusals))
      .hint("install one, or name it in [comm] plugin; `chassis plugins list` shows those installed");
}

std::unique_ptr<Instance> open_backend(const Settings::Comm& comm, RunPlugins& plugins, bool planned, Device device) {
  const std::string& id = comm.plugin;
  if (planned || id == "auto") return choose_backend(comm, plugins, planned, device);
  auto backend = plugins.create(comm.key(), "comm", id);
  const auto& table = backend->interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID);
  try {
    backend->call("supports",
                  [&](auto* self) { return table.supports(self, static_cast<uint32_t>(device.type), device.index); });
  } catch (const Error& error) {
    throw config_error(comm.plugin, error.message())
        .hint("set comm.plugin = \"auto\" to take one that serves this device");
  }
  if ((table.properties & CHASSIS_COMM_MOVES_NOTHING) != 0)
    throw config_error(comm.plugin,
                       "comm.plugin = \"" + id + "\" moves nothing between ranks: each rank would train alone")
        .hint("it is for plans; set comm.plugin = \"auto\" to take one that serves this device");
  return backend;
}

}  // namespace

std::vector<StackMember> stack_members(const Settings& settings, RunPlugins& plugins) {
  std::vector<StackMember> members;
  for (const PluginTable& strategy : settings.parallel)
    members.push_back({plugins.create(strategy.key(), "parallel", strategy.plugin), strategy.where()});
  return members;
}

RunMesh make_mesh(const Settings& settings, RunPlugins& plugins, const MeshPlace& place) {
  auto strategies = std::make_shared<Strategies>(stack_members(settings, plugins));

  std::vector<AxisRequest> requests;
  bool rest_is_given = false;
  for (size_t i = 0; i < kMeshAxes.size(); ++i) {
    const Setting<int64_t>& size = settings.mesh.sizes[i];
    AxisRequest request{std::string(kMeshAxes[i].name), 1, size.by_user(), size.where()};
    if (request.by_user) request.size = size;
    rest_is_given |= request.size == -1;
    requests.push_back(request);
  }
  const int world_size = place.size();
  std::vector<std::string> given;
  for (const AxisRequest& request : requests)
    if (request.by_user) given.push_back(request.name);
  const std::string home = strategies->home_axis(given);
  for (AxisRequest& request : requests)
    if (request.name == home && !request.by_user && !rest_is_given) request.size = -1;
  std::vector<MeshAxis> axes;
  for (const auto& [name, size] : axis_sizes(requests, world_size)) axes.push_back({name, size});
  if (strategies->empty() && world_size > 1)
    throw config_error(settings.parallel, "the run has " + std::to_string(world_size) +
                                              " processes, but [[parallel]] names no strategy to divide it")
        .hint("add [[parallel]] plugin = \"…\"; `chassis plugins list` shows those installed");
  return {MeshShape(std::move(axes)), place.rank(), std::move(strategies)};
}

std::string distant_ranks_text(const MeshShape& mesh, const std::vector<std::string>& machines) {
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const MeshAxis& spec = mesh.axes()[static_cast<size_t>(axis)];
    if (!is_tensor_axis(spec.name) || spec.size == 1) continue;
    for (int first = 0; first < mesh.world_size(); ++first) {
      MeshShape::Coordinates at = mesh.coordinates(first);
      if (at[static_cast<size_t>(axis)] != 0) continue;
      std::string text;
      bool is_distant = false;
      for (int i = 0; i < spec.size; ++i) {
        at[static_cast<size_t>(axis)] = i;
        const auto rank = static_cast<size_t>(mesh.rank(at));
        is_distant |= machines[rank] != machines[static_cast<size_t>(first)];
        text += (i > 0 ? ", " : "") + std::to_string(rank) + " on " + machines[rank];
      }
      if (is_distant) return "axis '" + spec.name + "' joins ranks of several machines: " + text;
    }
  }
  return "";
}

namespace {

// Ranks of a tensor axis send several activations in every layer.
void warn_of_distant_ranks(const MeshShape& mesh, World& world) {
  const bool has_tensor_axis = std::any_of(mesh.axes().begin(), mesh.axes().end(), [](const MeshAxis& axis) {
    return axis.size > 1 && is_tensor_axis(axis.name);
  });
  if (!has_tensor_axis) return;
  const std::string text = distant_ranks_text(mesh, world.exchange("names of machines", host_name()));
  if (!text.empty() && world.rank() == 0)
    counted_warning("tensor axis across machines",
                    text + "; give it a size that divides the ranks of a machine, which are neighbours");
}

}  // namespace

std::unique_ptr<Instance> open_comm_backend(const Config& config, RunPlugins& plugins, const RunMesh& mesh,
                                            const MeshPlace& place, Device device) {
  if (mesh.shape.world_size() == 1) return nullptr;  // one rank has nothing to send
  return open_backend(config.settings().comm, plugins, place.is_planned(), device);
}

std::string loaded_plugins_text(const PluginRegistry& registry) { return plugins_text(registry.lock()); }

std::unique_ptr<Communicator> make_communicator(const Config& config, RunPlugins& plugins, const RunMesh& mesh,
                                                const MeshPlace& place, Device device) {
  if (!place.is_planned()) place.world.expect_same("configuration", dotted_text(config.json()));
  if (!place.is_planned()) claim_open_descriptors(true);  // the store's connections, which LibTorch has opened
  auto backend = open_comm_backend(config, plugins, mesh, place, device);
  if (!place.is_planned()) place.world.expect_same("plugins", loaded_plugins_text(plugins.registry()));
  if (!place.is_planned()) warn_of_distant_ranks(mesh.shape, place.world);
  auto communicator = std::make_unique<Communicator>(std::move(backend), place.world, mesh.shape, mesh.rank,
                                                     place.is_planned() ? Device{} : device);
  plugins.services().set_communicator(communicator.get());
  return communicator;
}

StackContext stack_context(const Config& config, const RunMesh& mesh, Device device, DimSizes sizes) {
  StackContext facts;
  facts.sizes = std::move(sizes);
  facts.mesh = mesh.shape;
  facts.rank = mesh.rank;
  facts.device = device;
  const Setting<ReduceDtype>& reduce = config.settings().precision.reduce;
  facts.reduce_dtype = float_dtype(to_text(*reduce), reduce.key());
  facts.trains = config.use() == ConfigUse::kTraining;
  if (facts.trains) {
    int data_ranks = 1;
    for (const MeshAxis& axis : mesh.shape.axes())
      if (divides_rows(axis.name)) data_ranks *= axis.size;
    facts.num_microbatches = batch_sizes(config.settings(), data_ranks).num_microbatches;
  }
  return facts;
}

}  // namespace chassis
