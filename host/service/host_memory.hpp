// The memory that a process on this machine can use, within the limits of Linux, of control groups of both versions,
// and of the process itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace chassis {

struct HostMemory {
  uint64_t total_bytes = 0, free_bytes = 0;
  uint64_t free_swap_bytes = 0;
  // The limit that sets the free bytes, if it is not the machine's memory: "memory.max of control group /docker/1a2b".
  std::string limited_by;
};

// A limit of one process: of its address space, or of what it allocates in it.
struct ProcessLimit {
  std::string name;     // "RLIMIT_AS"
  std::string command;  // the command that shows and sets it: "ulimit -v"
  uint64_t limit_bytes = 0, used_bytes = 0;
};

// `root` is the prefix of /proc and /sys; tests pass another one.
HostMemory host_memory(const std::string& root = "");
// The limits that are set.
std::vector<ProcessLimit> process_limits(const std::string& root = "");

}  // namespace chassis
