// Reads /proc and /sys.
#include "host/service/host_memory.hpp"

#include <algorithm>
#include <cstdlib>

#include "host/base/control_groups.hpp"

namespace chassis {
namespace {

constexpr uint64_t kNoLimit = UINT64_MAX;

uint64_t proc_kib(const std::string& path, std::string_view key) {
  return std::strtoull(proc_line(path, key).c_str(), nullptr, 10) * 1024;
}

// The number in a file. kNoLimit if the file does not exist or has "max", or version 1's number for that.
uint64_t limit_in(const std::string& path) {
  const std::string text = proc_line(path, "");
  if (text.empty() || text.starts_with("max")) return kNoLimit;
  const uint64_t number = std::strtoull(text.c_str(), nullptr, 10);
  return number >= uint64_t{1} << 62 ? kNoLimit : number;
}

// The names in which a version of control groups gives its limits and usage.
struct GroupFiles {
  const char *limit, *used, *cached, *swap_limit, *swap_used;
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file", "memory.swap.max",
                                  "memory.swap.current"};
// Version 1 limits memory and swap together; that limit is not read.
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "", ""};

void apply_group(const ControlGroup& group, HostMemory& memory) {
  const GroupFiles& files = group.version == 2 ? kVersion2 : kVersion1;
  if (const uint64_t limit = limit_in(group.folder + files.limit); limit != kNoLimit) {
    const uint64_t cached = std::strtoull(proc_line(group.folder + "memory.stat", files.cached).c_str(), nullptr, 10);
    const uint64_t found = limit_in(group.folder + files.used), used = found == kNoLimit ? 0 : found;
    const uint64_t free = limit - std::min(limit, used - std::min(used, cached));
    memory.total_bytes = std::min(memory.total_bytes, limit);
    if (free < memory.free_bytes) {
      memory.free_bytes = free;
      memory.limited_by = std::string(files.limit) + " of control group " + group.name;
    }
  }
  if (*files.swap_limit == '\0') return;
  if (const uint64_t limit = limit_in(group.folder + files.swap_limit); limit != kNoLimit) {
    const uint64_t used = limit_in(group.folder + files.swap_used);
    memory.free_swap_bytes = std::min(memory.free_swap_bytes, limit - std::min(limit, used == kNoLimit ? 0 : used));
  }
}

// With vm.overcommit_memory = 2 Linux promises no more than CommitLimit.
void apply_commit_limit(const std::string& root, HostMemory& memory) {
  if (proc_line(root + "/proc/sys/vm/overcommit_memory", "") != "2") return;
  const std::string meminfo = root + "/proc/meminfo";
  const uint64_t limit = proc_kib(meminfo, "CommitLimit"), used = proc_kib(meminfo, "Committed_AS");
  const uint64_t free = limit - std::min(limit, used);
  memory.total_bytes = std::min(memory.total_bytes, limit);
  if (free >= memory.free_bytes) return;
  memory.free_bytes = free;
  memory.limited_by = "CommitLimit, since vm.overcommit_memory = 2";
}

}  // namespace

HostMemory host_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  HostMemory memory;
  memory.total_bytes = proc_kib(meminfo, "MemTotal");
  memory.free_bytes = proc_kib(meminfo, "MemAvailable");
  memory.free_swap_bytes = proc_kib(meminfo, "SwapFree");
  for (const ControlGroup& group : control_groups("memory", root)) apply_group(group, memory);
  apply_commit_limit(root, memory);
  return memory;
}

std::vector<ProcessLimit> process_limits(const std::string& root) {
  const std::string limits = root + "/proc/self/limits", status = root + "/proc/self/status";
  std::vector<ProcessLimit> out;
  const auto add = [&](const char* name, const char* command, const char* row, const char* used) {
    const std::string soft = proc_line(limits, row);  // then the hard limit, and the unit
    if (soft.empty() || soft.starts_with("unlimited")) return;
    out.push_back({name, command, std::strtoull(soft.c_str(), nullptr, 10), proc_kib(status, used)});
  };
  add("RLIMIT_AS", "ulimit -v", "Max address space", "VmSize");
  add("RLIMIT_DATA", "ulimit -d", "Max data size", "VmData");
  return out;
}

}  // namespace chassis
