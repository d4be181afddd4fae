// One function per launcher reads its variables; discover_launch chooses the launcher that started this process.
#include "host/launch/launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"

namespace chassis {
namespace {

constexpr int kMaxRanks = 1 << 20;
constexpr int kMaxPort = 65535;

// Strict access to the environment variables of one launcher.
class Variables {
 public:
  Variables(std::string source, const Environment& environment) : source_(std::move(source)), find_(environment) {}

  const std::string& source() const { return source_; }
  bool has(const std::string& name) const { return find_(name).has_value(); }
  std::string text_or(const std::string& name, std::string fallback) const {
    return find_(name).value_or(std::move(fallback));
  }

  std::string text(const std::string& name) const {
    const auto value = find_(name);
    if (!value || value->empty()) throw config_error(fmt::format("started by {}, but {} is not set", source_, name));
    return *value;
  }

  int64_t number(const std::string& name, int64_t min, int64_t max) const {
    const std::string value = text(name);
    int64_t number = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failure != std::errc() || end != value.data() + value.size() || number < min || number > max)
      throw config_error(fmt::format("started by {}: {} is '{}', expected {} to {}", source_, name, value, min, max));
    return number;
  }
  int rank(const std::string& name, int size) const { return static_cast<int>(number(name, 0, size - 1)); }
  int size(const std::string& name, int64_t max = kMaxRanks) const { return static_cast<int>(number(name, 1, max)); }
  int port(const std::string& name) const { return static_cast<int>(number(name, 1, kMaxPort)); }

 private:
  std::string source_;
  const Environment& find_;
};

// A port for launchers that set none: the same on all ranks, and below the ports of outgoing connections.
int port_of(std::string_view job) { return 20000 + static_cast<int>(hash64(job, 0) % 12000); }

// "node[03-05,7],gpu1" → "node03"
std::string first_host(const Variables& variables, const std::string& name) {
  const std::string list = variables.text(name);
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const size_t first_end = list.find_first_of("-,]", i), close = list.find(']', i);
    if (close == std::string::npos || first_end == i + 1)
      throw config_error(fmt::format("started by {}: {} is '{}', expected a list such as node[03-05,7]",
                                     variables.source(), name, list));
    host += list.substr(i + 1, first_end - i - 1);
    i = close;
  }
  return host;
}

// The number of ranks on a node, from a list for all nodes such as "2(x3),1".
int tasks_on_node(const Variables& variables, const std::string& name, int node) {
  const std::string list = variables.text(name);
  int first_node = 0;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string entry = list.substr(begin, end - begin);
    int tasks = 0, repeats = 1;
    const char* const last = entry.data() + entry.size();
    auto [rest, failure] = std::from_chars(entry.data(), last, tasks);
    if (failure == std::errc() && std::string_view(rest, static_cast<size_t>(last - rest)).starts_with("(x")) {
      failure = std::from_chars(rest + 2, last, repeats).ec;
      rest = last;
    }
    if (failure != std::errc() || rest != last || tasks < 1 || repeats < 1) break;
    if (node < first_node + repeats) return tasks;
    first_node += repeats;
    begin = end + 1;
  }
  throw config_error(fmt::format("started by {}: {} is '{}', which does not say how many ranks run on node {}",
                                 variables.source(), name, list, node))
      .hint("expected a list such as 2(x3),1");
}

std::optional<Launch> from_chassis(const Environment& environment) {
  const Variables variables("chassis --nproc", environment);
  if (!variables.has("CHASSIS_RANK")) return std::nullopt;
  Launch launch{.source = variables.source()};
  launch.world_size = launch.local_world_size = variables.size("CHASSIS_WORLD_SIZE");
  launch.rank = launch.local_rank = variables.rank("CHASSIS_RANK", launch.world_size);
  launch.master_port = variables.port("CHASSIS_STORE_PORT");
  launch.store_is_elsewhere = true;
  return launch;
}

// Also for ranks that are started by hand.
std::optional<Launch> from_torchrun(const Environment& environment) {
  const bool by_torchrun = environment("TORCHELASTIC_RUN_ID").has_value();
  const Variables variables(by_torchrun ? "torchrun" : "RANK and WORLD_SIZE", environment);
  if (!by_torchrun && !variables.has("RANK") && !variables.has("WORLD_SIZE")) return std::nullopt;
  Launch launch{.source = variables.source()};
  launch.world_size = variables.size("WORLD_SIZE");
  launch.rank = variables.rank("RANK", launch.world_size);
  if (launch.alone()) return by_torchrun ? std::optional(launch) : std::nullopt;
  launch.local_world_size = variables.size("LOCAL_WORLD_SIZE", launch.world_size);
  launch.local_rank = variables.rank("LOCAL_RANK", launch.local_world_size);
  launch.master_address = variables.text("MASTER_ADDR");
  launch.master_port = variables.port("MASTER_PORT");
  launch.store_is_elsewhere = variables.text_or("TORCHELASTIC_USE_AGENT_STORE", "False") == "True";
  launch.node = variables.text_or("GROUP_RANK", "");
  if (by_torchrun) launch.store_prefix = "restart " + variables.text_or("TORCHELASTIC_RESTART_COUNT", "0");
  return launch;
}

std::optional<Launch> from_openmpi(const Environment& environment) {
  const Variables variables("OpenMPI", environment);
  if (!variables.has("OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  Launch launch{.source = variables.source()};
  launch.world_size = variables.size("OMPI_COMM_WORLD_SIZE");
  if (launch.alone()) return std::nullopt;
  launch.rank = variables.rank("OMPI_COMM_WORLD_RANK", launch.world_size);
  launch.local_world_size = variables.size("OMPI_COMM_WORLD_LOCAL_SIZE", launch.world_size);
  launch.local_rank = variables.rank("OMPI_COMM_WORLD_LOCAL_RANK", launch.local_world_size);
  const std::string hint = "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT …, where HOST is the machine of rank 0";
  if (variables.has("MASTER_ADDR"))
    launch.master_address = variables.text("MASTER_ADDR");
  else if (launch.local_world_size < launch.world_size)
    throw config_error(
        fmt::format("started by OpenMPI on several machines ({} of {} ranks on this one), but MASTER_ADDR is not set",
                    launch.local_world_size, launch.world_size))
        .hint(hint);
  // The job id of mpirun: the first variable is from version 4, the second from version 5.
  const std::string job = variables.text_or("OMPI_MCA_ess_base_jobid", variables.text_or("PMIX_NAMESPACE", ""));
  if (variables.has("MASTER_PORT"))
    launch.master_port = variables.port("MASTER_PORT");
  else if (!job.empty())
    launch.master_port = port_of(job);
  else
    throw config_error("started by OpenMPI, but neither MASTER_PORT nor PMIX_NAMESPACE is set").hint(hint);
  launch.store_prefix = job;
  return launch;
}

// Only processes that srun started: the script of a job has the same variables, but no step.
std::optional<Launch> from_slurm(const Environment& environment) {
  const Variables variables("SLURM", environment);
  if (!variables.has("SLURM_STEP_ID") || !variables.has("SLURM_PROCID")) return std::nullopt;
  Launch launch{.source = variables.source()};
  launch.world_size = variables.size(variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  if (launch.alone()) return std::nullopt;
  launch.rank = variables.rank("SLURM_PROCID", launch.world_size);
  if (variables.has("SLURM_STEP_TASKS_PER_NODE"))
    launch.local_world_size =
        tasks_on_node(variables, "SLURM_STEP_TASKS_PER_NODE", variables.rank("SLURM_NODEID", kMaxRanks));
  else
    launch.local_world_size = variables.size("SLURM_NTASKS_PER_NODE", launch.world_size);
  launch.local_rank = variables.rank("SLURM_LOCALID", launch.local_world_size);
  launch.node = variables.text_or("SLURM_NODEID", "");
  if (variables.has("MASTER_ADDR"))
    launch.master_address = variables.text("MASTER_ADDR");
  else
    launch.master_address =
        first_host(variables, variables.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST");
  launch.store_prefix = variables.text("SLURM_JOB_ID") + "." + variables.text("SLURM_STEP_ID");
  launch.master_port = variables.has("MASTER_PORT") ? variables.port("MASTER_PORT") : port_of(launch.store_prefix);
  return launch;
}

// Whether `outer` started the launcher `inner`, which started this process.
bool may_nest(const Launch& inner, const Launch& outer, const Environment& environment) {
  // One torchrun per task of the outer launcher.
  if (inner.source == "torchrun")
    return Variables(inner.source, environment).number("GROUP_WORLD_SIZE", 1, kMaxRanks) == outer.world_size;
  // In a SLURM allocation, mpirun uses srun to start one daemon per node.
  return inner.source == "OpenMPI" && outer.source == "SLURM" && outer.local_world_size == 1;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

Launch discover_launch(const Environment& environment) {
  std::vector<Launch> found;  // innermost first
  for (auto* read : {from_chassis, from_torchrun, from_openmpi, from_slurm})
    if (auto launch = read(environment)) found.push_back(std::move(*launch));
  if (found.empty()) return {};
  const Launch& inner = found.front();
  for (const Launch& outer : found) {
    if ((outer.rank == inner.rank && outer.world_size == inner.world_size) || may_nest(inner, outer, environment))
      continue;
    throw config_error(fmt::format("{} says that this is rank {} of {}, but {} says rank {} of {}", inner.source,
                                   inner.rank, inner.world_size, outer.source, outer.rank, outer.world_size))
        .hint("use only one launcher, or unset the variables of the other");
  }
  return inner;
}

}  // namespace chassis
