// The record that each rank sends to the others when it arrives: its machine, process, address and cores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/launch/launch.hpp"

namespace chassis {

struct Arrival {
  std::string machine, place, process, address;
  int64_t local_rank = 0;
  std::vector<int> cores;
};

// The record of this process. `chosen_address` is the user's CHASSIS_HOST_ADDRESS or empty; other ranks use
// `host_address`.
Arrival this_arrival(const Launch& launch, const std::string& chosen_address, const std::string& host_address);

std::string to_text(const Arrival& arrival);
// Throws a communication error if the text was not written by to_text().
Arrival arrival_from_text(const std::string& text, int rank);

// Throws a config error that names both ranks if two have the same local rank of one machine.
void require_local_ranks(const std::vector<std::string>& arrivals);
// Throws a config error if `chosen`, the user's CHASSIS_HOST_ADDRESS, is not an address.
void require_address(const std::string& chosen);

// The cores that this process may run on.
std::vector<int> available_cores();
// "process 4711 on node3", for messages.
std::string process_text();

}  // namespace chassis
