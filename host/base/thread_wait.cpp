// Restarts the program through /proc/self/exe with its original arguments.
#include "host/base/thread_wait.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/control_groups.hpp"

namespace chassis {
namespace {

std::vector<std::string> arguments_of_this_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> out;
  for (std::string argument; std::getline(file, argument, '\0');) out.push_back(argument);
  return out;
}

}  // namespace

void sleep_at_once_if_cores_are_shared(int64_t threads_of_a_rank, int64_t num_ranks) {
  const std::string_view marker = kWaitMarker;
  const std::string name(marker.substr(0, marker.find('=')));
  const char* const set = std::getenv(name.c_str());
  if (set == nullptr || marker.substr(name.size() + 1) != set) return;
  if (threads_of_a_rank < 2 || static_cast<double>(threads_of_a_rank * num_ranks) <= usable_cores()) return;
  std::vector<std::string> arguments = arguments_of_this_process();
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  setenv(name.c_str(), "asleep", 1);
  setenv("GOMP_SPINCOUNT", "0", 1);
  execv("/proc/self/exe", pointers.data());  // on failure continue: only speed depends on it
}

}  // namespace chassis
