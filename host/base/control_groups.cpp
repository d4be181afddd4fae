// Reads /proc/self/cgroup and the folders that it names.
#include "host/base/control_groups.hpp"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace chassis {
namespace {

void add_with_enclosing(std::string group, int version, const std::string& folder, std::vector<ControlGroup>& out) {
  if (group == "/") group.clear();
  for (;; group.resize(group.rfind('/'))) {
    out.push_back({version, group.empty() ? "/" : group, folder + group + "/"});
    if (group.find('/') == std::string::npos) return;
  }
}

// The share of processors that a group allows; 0 if it has no limit. Version 2 has one file: "max 100000", "150000
// 100000"; version 1 has a file for each number, and a negative quota if there is no limit.
double allowed_cores(const ControlGroup& group) {
  std::string quota, period;
  if (group.version == 2) {
    std::istringstream(proc_line(group.folder + "cpu.max", "")) >> quota >> period;
  } else {
    quota = proc_line(group.folder + "cpu.cfs_quota_us", "");
    period = proc_line(group.folder + "cpu.cfs_period_us", "");
  }
  const double used = std::strtod(quota.c_str(), nullptr), of = std::strtod(period.c_str(), nullptr);
  return used > 0 && of > 0 ? used / of : 0;  // "max" reads as 0
}

int num_cores_of_affinity() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

}  // namespace

std::string proc_line(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) {
      const size_t start = line.find_first_not_of(" \t:", key.size());
      return start == std::string::npos ? "" : line.substr(start);
    }
  return "";
}

std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root) {
  const std::string top = root + "/sys/fs/cgroup", wanted = "," + std::string(controller) + ",";
  // Each line: "number:controllers:group"; version 2 has the number 0 and no controllers.
  std::ifstream lines(root + "/proc/self/cgroup");
  std::vector<ControlGroup> out;
  bool is_listed = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line);
    std::string number, controllers, group;
    std::getline(parts, number, ':'), std::getline(parts, controllers, ':'), std::getline(parts, group);
    if (controllers.empty()) add_with_enclosing(group, 2, top, out), is_listed = true;
    if (("," + controllers + ",").find(wanted) != std::string::npos)
      add_with_enclosing(group, 1, top + "/" + std::string(controller), out);
  }
  if (!is_listed) add_with_enclosing("", 2, top, out);
  return out;
}

double usable_cores(const std::string& root) {
  double cores = num_cores_of_affinity();
  for (const ControlGroup& group : control_groups("cpu", root))
    if (const double allowed = allowed_cores(group); allowed > 0) cores = std::min(cores, allowed);
  return cores;
}

int usable_threads() { return std::max(1, static_cast<int>(std::ceil(usable_cores()))); }

}  // namespace chassis
