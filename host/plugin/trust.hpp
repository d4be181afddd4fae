// Decides which libraries may be loaded. A library runs as the user, so only trusted users may change or replace it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace chassis {

// root, the user, and the owner of this program, who could change the program itself.
std::vector<uid_t> trusted_owners();

struct TrustPolicy {
  std::vector<uid_t> owners = trusted_owners();
  std::vector<std::string> folders = {};  // [plugins] trust: their files may have any owner
};

// Refuses a file if everyone may write to it, to its folder, or to the folder of a symbolic link that leads to it, even
// with the sticky bit.
// `pin_name` and `plugin` are for the advice in the message: the name of a pin for this file, and the argument of
// `chassis plugins info` that shows its hash. If both are empty, the file is the plugin. If only the name is, a pin
// does not help, since the file is mapped from its own path.
void check_permissions(const std::string& path, const std::string& pin_name = "", const std::string& plugin = "");
// Like check_permissions(); also refuses if another user or group owns one of these or may write to it, unless `policy`
// trusts a folder that contains the file. Not needed for files whose hash is pinned.
void check_trust(const std::string& path, const TrustPolicy& policy, const std::string& pin_name = "",
                 const std::string& plugin = "");

}  // namespace chassis
