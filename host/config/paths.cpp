// Expands "~", and names the folders that cannot hold files of a run.
#include "host/config/paths.hpp"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace chassis {

namespace fs = std::filesystem;

std::optional<std::string> expand_home(std::string& path) {
  if (!path.starts_with('~')) return std::nullopt;
  if (path.size() > 1 && path[1] != '/') {
    std::error_code ignored;
    if (fs::exists(path, ignored)) return std::nullopt;
    return "only \"~/\" is expanded, to your own home folder: write the whole path";
  }
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "\"~\" means HOME, which is not set: write the whole path";
  path.replace(0, 1, home);
  return std::nullopt;
}

std::string why_not_writable(const std::string& folder) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(folder, error), error);
  if (error) return "";  // creating it will report why
  if (whole == whole.root_path()) return "it is the root of the file system";
  const std::string path = whole.string() + "/";
  for (const char* system : {"/dev/", "/proc/", "/sys/"})
    if (path.starts_with(system) && !path.starts_with("/dev/shm/"))
      return std::string(system) + " belongs to the system";
  return "";
}

}  // namespace chassis
