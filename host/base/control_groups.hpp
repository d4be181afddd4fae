// The control groups of this process, and lines of files in /proc and /sys. Finds the files of both versions of control
// groups; callers interpret them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

struct ControlGroup {
  int version = 2;
  std::string name;    // "/docker/1a2b"; "/" is the outermost
  std::string folder;  // holds its files; ends with a slash
};

// The groups of this process that have files of `controller` ("memory", "cpu"), the innermost first. In a container,
// the paths may be those seen from outside; then only the last folder, the container's own, exists. `root` is put
// before /proc and /sys; tests pass another one.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = "");

// The value of a line "Key:   value" of a file in /proc; empty if there is none. The key may be empty.
std::string proc_line(const std::string& path, std::string_view key);

// The number of processors that this process may use at once: those in its affinity mask, or fewer, possibly a
// fraction, if a control group limits their time (cpu.max, cpu.cfs_quota_us). Above 0.
double usable_cores(const std::string& root = "");
// The number of threads that can use them: usable_cores(), rounded up.
int usable_threads();

}  // namespace chassis
