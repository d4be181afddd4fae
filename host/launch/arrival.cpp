// Arrivals are sent as JSON, and checked when they are read.
#include "host/launch/arrival.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/launch/address.hpp"

namespace chassis {
namespace {

// Processes with the same place see the same files, devices and network, so each local rank is one process there.
// Containers, network namespaces or several addresses let one machine act as several.
std::string place_of_this_process(const std::string& chosen_address) {
  std::string place = chosen_address;
  for (const char* kind : {"/proc/self/ns/mnt", "/proc/self/ns/net"}) {
    char name[64] = {};
    if (readlink(kind, name, sizeof name - 1) > 0) place += std::string(" ") + name;
  }
  return place;
}

}  // namespace

std::vector<int> available_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

std::string process_text() { return fmt::format("process {} on {}", getpid(), printable(host_name())); }

Arrival this_arrival(const Launch& launch, const std::string& chosen_address, const std::string& host_address) {
  Arrival arrival;
  arrival.machine = machine_id();
  arrival.place = place_of_this_process(chosen_address) + " " + printable(launch.node);
  arrival.process = process_text();
  arrival.address = host_address;
  arrival.local_rank = launch.local_rank;
  arrival.cores = available_cores();
  return arrival;
}

void require_address(const std::string& chosen) {
  try {
    if (!chosen.empty() && !resolve(chosen, 0).empty()) return;
  } catch (const Error&) {
  }
  throw config_error(
      fmt::format("CHASSIS_HOST_ADDRESS is '{}', which is not an address of a machine", printable(chosen)));
}

std::string to_text(const Arrival& arrival) {
  const Json json = {{"machine", arrival.machine}, {"place", arrival.place},           {"process", arrival.process},
                     {"address", arrival.address}, {"local_rank", arrival.local_rank}, {"cores", arrival.cores}};
  return json.dump();
}

Arrival arrival_from_text(const std::string& text, int rank) {
  const std::string where = fmt::format("the arrival of rank {}", rank);
  try {
    const Json json = parse_json(text, where);
    Arrival arrival;
    arrival.machine = json_string(json, "machine", where);
    arrival.place = json_string(json, "place", where);
    arrival.process = json_string(json, "process", where);
    arrival.address = json_string(json, "address", where);
    arrival.local_rank = json_int(json, "local_rank", where);
    arrival.cores = json_at(json, "cores", where).get<std::vector<int>>();
    return arrival;
  } catch (const std::exception& cause) {
    throw Error(ExitCode::kCommunication, where + " was not written by this program")
        .caused_by(cause)
        .hint("another version of it, or another program, uses the same port");
  }
}

void require_local_ranks(const std::vector<std::string>& arrivals) {
  std::map<std::pair<std::string, int64_t>, int> seen;
  std::vector<Arrival> ranks;
  for (size_t rank = 0; rank < arrivals.size(); ++rank) {
    const Arrival& mine = ranks.emplace_back(arrival_from_text(arrivals[rank], static_cast<int>(rank)));
    const auto [first, is_new] =
        seen.try_emplace({mine.machine + " " + mine.place, mine.local_rank}, static_cast<int>(rank));
    if (is_new) continue;
    throw config_error(fmt::format("ranks {} and {} are both local rank {} of one machine: {}, and {}", first->second,
                                   rank, mine.local_rank, ranks[static_cast<size_t>(first->second)].process,
                                   mine.process))
        .hint(
            "LOCAL_RANK counts the ranks of a machine from 0; if one machine acts as several, GROUP_RANK numbers them");
  }
}

}  // namespace chassis
