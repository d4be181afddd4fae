// The control groups of this process, and lines of files in /proc and /sys. The files of both versions of control
// groups are found; what they mean is known to those that read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

struct ControlGroup {
  int version = 2;
  std::string name;    // "/docker/1a2b"; "/" is the outermost
  std::string folder;  // of its files, with a slash at the end
};

// The groups of this process that have files of `controller` ("memory", "cpu"), the innermost first. In a container the
// path of the group may be that outside it; then only the last folder, the container's own, exists. `root` is before
// /proc and /sys; tests give another one.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = "");

// The value of a line "Key:   value" of a file in /proc; empty if there is none. The key may be empty.
std::string proc_line(const std::string& path, std::string_view key);

// The processors that this process may use at once: those of its affinity, or fewer, also a fraction, where a control
// group limits their time (cpu.max, cpu.cfs_quota_us). Above 0.
double usable_cores(const std::string& root = "");
// The number of threads that use them: usable_cores(), rounded up.
int usable_threads();

}  // namespace chassis
