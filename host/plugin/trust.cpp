// Checks of owners and permissions of plugin files, of the links to them and of their folders.
#include "host/plugin/trust.hpp"

#include <fmt/core.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "host/base/error.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;

struct stat stat_of(const fs::path& path, bool follow) {
  struct stat status {};
  if ((follow ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status)) != 0)
    throw storage_error(fmt::format("{}: {}", path.string(), std::strerror(errno)));
  return status;
}

fs::path folder_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// Calls `visit` with the file, every symbolic link that leads to it, and the folder of each.
template <typename Visit>
void for_each_on_path(fs::path path, const Visit& visit) {
  for (int links = 0; links <= kMaxLinks; ++links) {
    const fs::path folder = folder_of(path);
    visit(folder, stat_of(folder, true));
    const struct stat status = stat_of(path, false);
    visit(path, status);
    if (!S_ISLNK(status.st_mode)) return;
    std::array<char, 4096> target;
    const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
    if (size < 0 || size == static_cast<ssize_t>(target.size()))
      throw storage_error(
          fmt::format("{}: {}", path.string(), size < 0 ? std::strerror(errno) : "its target is too long"));
    const fs::path next(std::string(target.data(), static_cast<size_t>(size)));
    path = next.is_absolute() ? next : folder / next;
  }
  throw storage_error(fmt::format("{}: more than {} links follow one another", path.string(), kMaxLinks));
}

std::string user_text(uid_t user) {
  std::array<char, 4096> memory;
  struct passwd entry, *found = nullptr;
  if (::getpwuid_r(user, &entry, memory.data(), memory.size(), &found) != 0 || found == nullptr)
    return fmt::format("user {}", user);
  return fmt::format("user {} ({})", user, entry.pw_name);
}

bool is_inside(const std::string& path, const std::string& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error), above = fs::canonical(folder, error);
  if (error) return false;
  return std::mismatch(above.begin(), above.end(), real.begin(), real.end()).first == above.end();
}

std::string pin_text(const std::string& path, const std::string& name, const std::string& plugin) {
  if (name.empty() && !plugin.empty())
    return "; a pin cannot lift this, since the plugin needs the file by its path and not by a name";
  if (!name.empty())
    return fmt::format(
        "; or pin what is in the file: [plugins] pin = {{ \"{}\" = \"sha256:…\" }}, with the hash that "
        "`chassis plugins info {}` prints",
        name, plugin);
  return fmt::format(
      "; or pin what is in the file: [plugins] pin = {{ ID = \"sha256:…\" }}, with the ID and hash that "
      "`chassis plugins info {}` prints",
      path);
}

void refuse_writable_by_all(const std::string& path, const fs::path& at, const struct stat& status,
                            const std::string& pin_advice) {
  if (S_ISLNK(status.st_mode) || (status.st_mode & S_IWOTH) == 0) return;
  const std::string mode = fmt::format("writable by everyone (mode {:o})", status.st_mode & 07777);
  const bool folder = S_ISDIR(status.st_mode);
  throw plugin_error(folder ? fmt::format("{} lies in {}, which is {}, so anyone could put another in its place", path,
                                          at.string(), mode)
                            : fmt::format("{} is {}, so anyone could change what runs", at.string(), mode))
      .hint((folder && ((status.st_mode & S_ISVTX) != 0 || status.st_uid != ::geteuid())
                 ? "move it to a folder of your own"
             : folder ? "move it to a folder of your own, or chmod o-w " + at.string()
                      : "chmod o-w " + at.string()) +
            pin_advice + "; [plugins] trust cannot lift this, since it is about owners");
}

}  // namespace

std::vector<uid_t> trusted_owners() {
  std::vector<uid_t> owners = {0, ::geteuid()};
  struct stat program {};
  if (::stat("/proc/self/exe", &program) == 0) owners.push_back(program.st_uid);
  return owners;
}

void check_permissions(const std::string& path, const std::string& pin_name, const std::string& plugin) {
  const std::string advice = pin_text(path, pin_name, plugin);
  for_each_on_path(
      path, [&](const fs::path& at, const struct stat& status) { refuse_writable_by_all(path, at, status, advice); });
}

void check_trust(const std::string& path, const TrustPolicy& policy, const std::string& pin_name,
                 const std::string& plugin) {
  check_permissions(path, pin_name, plugin);
  for (const std::string& folder : policy.folders)
    if (is_inside(path, folder)) return;
  const auto refuse = [&](const fs::path& at, const std::string& what) {
    return plugin_error(fmt::format("{} is not loaded: {} {}, who could change what runs", path, at.string(), what))
        .hint(fmt::format("if you trust them, add to the TOML: [plugins] trust = [\"{}\"]{}",
                          fs::absolute(folder_of(path)).lexically_normal().string(), pin_text(path, pin_name, plugin)));
  };
  for_each_on_path(path, [&](const fs::path& at, const struct stat& status) {
    if (std::find(policy.owners.begin(), policy.owners.end(), status.st_uid) == policy.owners.end())
      throw refuse(at, "belongs to " + user_text(status.st_uid));
    // Rationale: many systems give each user a private group, which may write by default.
    const bool own_group = status.st_gid == 0 || (status.st_uid == ::geteuid() && status.st_gid == ::getegid());
    if (!S_ISLNK(status.st_mode) && (status.st_mode & S_IWGRP) != 0 && !own_group)
      throw refuse(at, fmt::format("may be written by group {}", status.st_gid));
  });
}

}  // namespace chassis
