// Reads the soft limits and the usage of this process.
#include "host/base/limit_text.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdlib>
#include <optional>

#include "host/base/control_groups.hpp"
#include "host/base/units.hpp"

namespace chassis {
namespace {

std::optional<uint64_t> soft_limit(__rlimit_resource_t which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

uint64_t number_in_status(const char* key) {
  return std::strtoull(proc_line("/proc/self/status", key).c_str(), nullptr, 10);
}

void add(std::string& text, const std::string& part) { text += (text.empty() ? "" : "; ") + part; }

void add_memory(std::string& text, __rlimit_resource_t which, const char* name, const char* used_key,
                const char* command) {
  if (const auto limit = soft_limit(which))
    add(text, fmt::format("{} is {}, of which {} are in use ({})", name, bytes_text(*limit),
                          bytes_text(1024 * number_in_status(used_key)), command));
}

}  // namespace

std::string memory_limits_text() {
  std::string text;
  add_memory(text, RLIMIT_AS, "RLIMIT_AS", "VmSize", "ulimit -v");
  add_memory(text, RLIMIT_DATA, "RLIMIT_DATA", "VmData", "ulimit -d");
  return text;
}

std::string thread_limits_text() {
  std::string text;
  if (const auto limit = soft_limit(RLIMIT_NPROC))
    add(text,
        fmt::format("RLIMIT_NPROC is {} processes and threads of this user, of which this process has {} (ulimit -u)",
                    *limit, number_in_status("Threads")));
  if (const std::string memory = memory_limits_text(); !memory.empty()) add(text, memory);
  return text;
}

std::string file_limit_text() {
  const auto limit = soft_limit(RLIMIT_FSIZE);
  return limit ? fmt::format("RLIMIT_FSIZE is {} for each file (ulimit -f)", bytes_text(*limit)) : "";
}

}  // namespace chassis
