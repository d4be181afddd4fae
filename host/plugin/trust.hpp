// Whose code is loaded: a library runs as the user, so nobody else may be able to change or replace it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace chassis {

// root, the user, and the owner of this program, who could change the program itself.
std::vector<uid_t> trusted_owners();

struct TrustPolicy {
  std::vector<uid_t> owners = trusted_owners();
  std::vector<std::string> folders = {};  // [plugins] trust: whoever owns what lies in them
};

// Refuses a file that everyone may write, or that lies, or has a link on its way, in a folder that everyone may write,
// sticky or not. Looks at the file, every link that leads to it, and the folders in which they lie.
void check_permissions(const std::string& path);
// That, and refuses what another user or group may write or owns, unless `policy` trusts a folder above it. For files
// whose hash is not pinned: what is pinned is proven by its content.
void check_trust(const std::string& path, const TrustPolicy& policy);

}  // namespace chassis
